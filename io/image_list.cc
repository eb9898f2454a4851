#include <paceline/image_list.h>

#include <paceline/error.h>
#include <paceline/log.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
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

// Finds images below a folder, through links too.
class FolderSearch {
 public:
  explicit FolderSearch(const std::string& root) : root_(root) { look_into(root_); }
  // Relative to the root, sorted.
  std::vector<fs::path> found;

 private:
  void look_into(const fs::path& folder) {
    struct stat status = {};
    if (stat(folder.c_str(), &status) != 0) io::throw_io_error("read the folder", folder.string(), errno);
    for (const Above& above : above_) {
      require(above.device != status.st_dev || above.inode != status.st_ino, "the link ", folder.string(),
              " leads back to the folder ", above.path.string(), ", which holds it; remove the link");
    }
    above_.push_back({folder, status.st_dev, status.st_ino});
    std::error_code error;
    fs::directory_iterator at(folder, error);
    for (; !error && at != fs::directory_iterator(); at.increment(error)) {
      // Programs keep data of their own there, which is no class: .ipynb_checkpoints, .DS_Store, ._1.png.
      const std::string name = at->path().filename().string();
      if (name.starts_with('.') || name == "__MACOSX") continue;
      std::error_code broken;  // a link that leads nowhere: if it is called an image, reading it will say so
      if (at->is_directory(broken))
        look_into(at->path());
      else if (is_image(at->path()))
        found.push_back(at->path().lexically_relative(root_));
    }
    if (error) io::throw_io_error("read the folder", folder.string(), error.value());
    above_.pop_back();
    if (above_.empty()) std::sort(found.begin(), found.end());
  }

  struct Above {
    fs::path path;
    dev_t device;
    ino_t inode;
  };
  fs::path root_;
  std::vector<Above> above_;
};

// As MXNet's detection: the length of the header, the length of an object, the rest of the header, objects.
bool is_for_detection(const std::vector<float>& labels) {
  const auto most = static_cast<float>(labels.size());
  if (labels.size() < 2 || !(labels[0] >= 2 && labels[0] <= most && labels[1] >= 1)) return false;
  const std::size_t objects = labels.size() - static_cast<std::size_t>(labels[0]);
  return objects == 0 || (labels[1] <= most && objects % static_cast<std::size_t>(labels[1]) == 0);
}

// Throws Corrupt for lines that cannot be of one list.
void check_lines(const ImageList& list, const std::vector<std::int64_t>& lines, const std::string& path) {
  std::map<std::int64_t, std::int64_t> line_of;
  const std::vector<float>& first = list.entries.front().labels;
  const auto differs = [&](const ImageListEntry& entry) { return entry.labels.size() != first.size(); };
  const bool variable = std::any_of(list.entries.begin(), list.entries.end(), differs);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const ImageListEntry& entry = list.entries[i];
    const auto [same, is_new] = line_of.emplace(entry.id, lines[i]);
    if (!is_new) throw Corrupt(str(path, ": line ", lines[i], " has the id ", entry.id, ", as line ", same->second));
    if (variable && !is_for_detection(entry.labels) && (differs(entry) || !is_for_detection(first))) {
      const auto other = std::find_if(list.entries.begin(), list.entries.end(), differs) - list.entries.begin();
      throw Corrupt(str(path, ": line ", lines[static_cast<std::size_t>(other)], " has ",
                        list.entries[static_cast<std::size_t>(other)].labels.size(), " labels, but line ", lines[0],
                        " has ", first.size(), "; only labels for detection may differ in number"));
    }
  }
}

}  // namespace

ImageList list_image_folder(const std::string& folder) {
  std::vector<fs::path> found = FolderSearch(folder).found;
  require(!found.empty(), "the folder ", folder,
          " holds no images; expected .jpg, .jpeg or .png files, one sub-folder "
          "for each class");

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
    for (const std::string& name : list.classes)
      require(io::is_utf8(name), "the name of the folder ", io::in_quotes(name), " in ", folder,
              " is not UTF-8, as names of classes are; rename it");
  } else {
    LOG(WARNING) << folder << " has no folders of classes: every image gets label 0";
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
  std::vector<std::int64_t> lines;
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
    entry.path = (fs::path(root) / entry.path).string();
    list.entries.push_back(std::move(entry));
    lines.push_back(number);
  }
  require(!list.entries.empty(), "the list ", path, " names no images");
  check_lines(list, lines, path);
  return list;
}

}  // namespace paceline
