#pragma once
// How every program of this folder reads its command line: flags by gflags, a short --help, an unknown flag answered
// with the known ones and, where it is read, a last line that says so.

#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/error.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace paceline::tools {

// 0.05, where gflags writes 0.050000000000000003.
inline std::string shortest(const std::string& number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, std::stod(number)).ptr};
}

// The files (__FILE__) that define a program's flags.
struct FlagSources : std::vector<std::string> {
  FlagSources(const char* file) : vector{file} {}
  FlagSources(std::vector<std::string> files) : vector(std::move(files)) {}
};

// Prints the flags that `sources` define.
inline void print_flags(std::FILE* to, const FlagSources& sources) {
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  for (auto& flag : flags) {
    if (std::find(sources.begin(), sources.end(), flag.filename) == sources.end()) continue;
    const char* quote = flag.type == "string" ? "'" : "";
    if (flag.type == "double") flag.default_value = shortest(flag.default_value);
    std::fprintf(to, "  --%-16s %s (%s, default %s%s%s)\n", flag.name.c_str(), flag.description.c_str(),
                 flag.type.c_str(), quote, flag.default_value.c_str(), quote);
  }
}

// Removes the flags from the arguments. `--help` prints and ends the program with 0, an unknown flag with 2.
inline void parse_flags(const char* usage, const FlagSources& sources, int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    std::string name = (*argv)[i];
    if (name == "--") break;
    if (name.size() < 2 || name[0] != '-') continue;
    name.erase(0, name[1] == '-' ? 2 : 1);
    name.erase(std::min(name.find('='), name.size()));
    if (name == "help" || name == "h") {
      std::printf("%s\n\nFlags:\n", usage);
      print_flags(stdout, sources);
      std::exit(0);
    }
    gflags::CommandLineFlagInfo info;
    const bool known = gflags::GetCommandLineFlagInfo(name.c_str(), &info) ||
                       (name.rfind("no", 0) == 0 && gflags::GetCommandLineFlagInfo(name.c_str() + 2, &info));
    if (!known) {
      std::fprintf(stderr, "Flags:\n");
      print_flags(stderr, sources);
      std::fprintf(stderr, "unknown flag --%s; the known flags are listed above\n", name.c_str());
      std::exit(2);
    }
    // The value of `--flag value` is no flag.
    if (info.type != "bool" && !std::strchr((*argv)[i], '=')) ++i;
  }
  gflags::ParseCommandLineFlags(argc, argv, true);
}

// What main() returns: `code`, but never 0 where what was printed is lost, on a full disk say.
inline int ended(const char* program, int code = 0) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
  std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program, std::strerror(errno));
  return std::max(code, 1);
}

// Throws InvalidArgument unless a program can start so many threads; 0: as many as there are cores.
inline int threads_wanted(int threads) {
  constexpr int kMost = 1024;
  require(threads >= 0 && threads <= kMost, "--threads is 0 to ", kMost, ", not ", threads);
  return threads > 0 ? threads : core_budget();
}

}  // namespace paceline::tools
