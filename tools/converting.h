#pragma once
// What im2rec and to_rec share: flags, and converting with progress, a list of what is bad, and an end by signals that
// leaves things tidy.

#include <paceline/convert.h>
#include <paceline/convert_sources.h>

#include <string>

namespace paceline::tools {

// The source file that defines the flags of both programs.
extern const char* const kConvertingFlags;

// Images and conversion as these flags say.
ImageSourceOptions image_source_options();
ConvertOptions convert_options();

// Prints what was written. `one` is what an entry is: "image", "row". A signal before it ends the program at once, as
// there is nothing to tidy up yet.
int convert_and_tell(const std::string& prefix, const RecordSource& source, ConvertOptions options, const char* one);

}  // namespace paceline::tools
