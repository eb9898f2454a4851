#include <paceline/image_list.h>

#include <paceline/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>

#include "file.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

std::string_view strip(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <class T>
bool parse(std::string_view text, T& value) {
  text = strip(text);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_line(std::string_view line, ImageListEntry& entry) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t tab = line.find('\t');
    fields.push_back(strip(line.substr(0, tab)));
    if (tab == std::string_view::npos) break;
    line.remove_prefix(tab + 1);
  }
  if (fields.size() < 3 || fields.back().empty() || !parse(fields[0], entry.id)) return false;
  for (std::size_t i = 1; i + 1 < fields.size(); ++i) {
    float label = 0;
    if (!parse(fields[i], label) || !std::isfinite(label)) return false;
    entry.labels.push_back(label);
  }
  entry.path = fields.back();
  return true;
}

}  // namespace

ImageList list_image_folder(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (is_image(at->path()) && at->is_regular_file()) found.push_back(at->path().lexically_relative(folder));
  }
  if (error) io::throw_io_error("read the folder", folder, error.value());
  require(!found.empty(), "the folder ", folder,
          " holds no images; expected .jpg, .jpeg or .png files, one sub-folder "
          "for each class");
  std::sort(found.begin(), found.end());

  std::set<std::string> folders;
  for (const fs::path& path : found) folders.insert(path.parent_path().string());
  ImageList list;
  if (folders.size() > 1 || !folders.count("")) {
    const auto stray = std::find_if(found.begin(), found.end(), [](const fs::path& p) { return !p.has_parent_path(); });
    if (stray != found.end()) {
      throw InvalidArgument(
          str("the folder ", folder, " holds images beside its class folders, for instance ", stray->string()));
    }
    list.classes.assign(folders.begin(), folders.end());
  }
  for (const fs::path& path : found) {
    const auto name = std::lower_bound(list.classes.begin(), list.classes.end(), path.parent_path().string());
    ImageListEntry entry;
    entry.id = static_cast<std::int64_t>(list.entries.size());
    entry.labels = {static_cast<float>(name - list.classes.begin())};
    entry.path = (fs::path(folder) / path).string();
    list.entries.push_back(std::move(entry));
  }
  return list;
}

ImageList read_image_list(const std::string& path, const std::string& root) {
  const std::string text = io::read_text(path);
  std::string_view rest = text;
  ImageList list;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (strip(line).empty()) continue;
    ImageListEntry entry;
    if (!parse_line(line, entry)) {
      throw Corrupt(
          str(path, ": line ", number, " is damaged: expected an id, a label or more and a path, separated by tabs"));
    }
    if (!list.entries.empty() && entry.labels.size() != list.entries.front().labels.size()) {
      throw Corrupt(str(path, ": line ", number, " has ", entry.labels.size(), " labels, the lines before it have ",
                        list.entries.front().labels.size()));
    }
    entry.path = (fs::path(root) / entry.path).string();
    list.entries.push_back(std::move(entry));
  }
  require(!list.entries.empty(), "the list ", path, " names no images");
  return list;
}

}  // namespace paceline
