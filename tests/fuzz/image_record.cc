#include <paceline/image.h>

#include <vector>

#include "fuzz.h"

namespace paceline::fuzz {

void image_record(std::string_view input) {
  const auto read = within(4096, [&] { return parsed<Corrupt>([&] { return ImageRecord(input); }); });
  if (!read) return;
  std::vector<float> labels;
  for (int i = 0; i < read->label_count(); ++i) labels.push_back(read->label(i));
  const std::string written = pack_image_record(labels, read->id(), read->image());
  const ImageRecord again(written);
  bool same = again.label_count() == read->label_count() && again.id() == read->id() && again.image() == read->image();
  for (std::size_t i = 0; same && i < labels.size(); ++i) {
    const float label = again.label(static_cast<int>(i));
    same = std::memcmp(&label, &labels[i], sizeof label) == 0;
  }
  expect(same, "the record comes back as another");
}

}  // namespace paceline::fuzz
