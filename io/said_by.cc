#include "said_by.h"

#include <paceline/error.h>
#include <paceline/record_tools.h>

namespace paceline::io {

void CommonColumns::add(const std::string& source, std::optional<std::uint32_t> columns) {
  all_say_it_ = all_say_it_ && columns;
  if (!columns) return;
  if (!checksum_) checksum_ = columns;
  require(columns == checksum_, source,
          " has other columns or categories than the sources before it; convert it with `to_rec --schema` and the "
          ".schema.json of one of them");
}

SaidBy said_by(const std::vector<std::string>& sources) {
  SaidBy result;
  Manifest& manifest = result.manifest;
  CommonColumns columns;
  for (const std::string& source : sources) {
    if (record_files(source) == std::vector{source}) {
      result.without = source;
      columns.add(source, {});
      continue;
    }
    const Manifest of_source = Manifest::load(source);
    if (result.first.empty()) {
      result.first = source;
      manifest.decoder = of_source.decoder;
      manifest.class_labels = of_source.class_labels;
    }
    require(of_source.decoder == manifest.decoder, source, " holds other records than ", result.first,
            ": their decoders differ");
    require(manifest.decoder.name.empty() || of_source.class_labels == manifest.class_labels, source,
            " holds other labels than ", result.first, ": only one of them has class numbers");
    columns.add(source, of_source.columns_crc32c);
    if (manifest.labels.empty()) manifest.labels = of_source.labels;
    require(of_source.labels.empty() || of_source.labels == manifest.labels, source,
            " names other classes than the sources before it");
    if (sources.size() == 1) manifest.shuffle_seed = of_source.shuffle_seed;
  }
  manifest.columns_crc32c = columns.checksum();
  return result;
}

}  // namespace paceline::io
