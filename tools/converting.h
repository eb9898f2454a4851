#pragma once
// What im2rec and to_rec share: flags, and a conversion that shows its progress and prints bad entries. A signal ends
// the conversion and keeps only the finished shards, from which the next run goes on.

#include <paceline/convert.h>
#include <paceline/convert_sources.h>

#include <string>

namespace paceline::tools {

// The source file that defines the flags of both programs.
extern const char* const kConvertingFlags;

// The options of images and of the conversion, as these flags give them.
ImageSourceOptions image_source_options();
ConvertOptions convert_options();

// Converts `source` and prints what was written. `one` is what an entry is: "image", "row". Signals are noticed from
// this call on. An earlier signal ends the program at once, as there are no files to remove yet.
int convert_and_tell(const std::string& prefix, const RecordSource& source, ConvertOptions options, const char* one);

}  // namespace paceline::tools
