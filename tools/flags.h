#pragma once
// How every program reads its command line and how it ends: flags by gflags, a short --help, one sentence for a
// mistake.

#include <gflags/gflags.h>
#include <paceline/cores.h>
#include <paceline/detail/descriptor.h>
#include <paceline/error.h>
#include <paceline/exit_code.h>
#include <paceline/log.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
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

inline std::vector<gflags::CommandLineFlagInfo> flags_of(const FlagSources& sources) {
  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  std::erase_if(flags, [&](const gflags::CommandLineFlagInfo& flag) {
    return std::find(sources.begin(), sources.end(), flag.filename) == sources.end();
  });
  return flags;
}

// Prints the flags that `sources` define.
inline void print_flags(const FlagSources& sources) {
  for (auto& flag : flags_of(sources)) {
    const char* quote = flag.type == "string" ? "'" : "";
    if (flag.type == "double") flag.default_value = shortest(flag.default_value);
    std::printf("  --%-16s %s (%s, default %s%s%s)\n", flag.name.c_str(), flag.description.c_str(), flag.type.c_str(),
                quote, flag.default_value.c_str(), quote);
  }
}

// How many letters to put in, take out or change until `a` is `b`.
inline std::size_t edits_between(const std::string& a, const std::string& b) {
  std::vector<std::size_t> edits(b.size() + 1);
  std::iota(edits.begin(), edits.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(edits[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j)
      diagonal = std::exchange(edits[j], std::min({edits[j] + 1, edits[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
  }
  return edits[b.size()];
}

// " (do you mean --shards?)", or nothing where no flag of `sources` is near.
inline std::string nearest_flag(const std::string& name, const FlagSources& sources) {
  std::string nearest;
  std::size_t fewest = 2 + name.size() / 4;
  for (const auto& flag : flags_of(sources)) {
    const bool begins = name.size() >= 2 && flag.name.starts_with(name);
    const std::size_t edits = begins ? 0 : edits_between(name, flag.name);
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = " (do you mean --" + flag.name + "?)";
  }
  return nearest;
}

// Ends the program over a mistake in its command line.
template <class... Parts>
[[noreturn]] void refuse_command_line(const char* program, const Parts&... parts) {
  std::fprintf(stderr, "%s; %s --help says more\n", str(program, ": ", parts...).c_str(), program);
  std::exit(kExitMistake);
}

// Is all that was printed written? Says why not, where it is lost, on a full disk say.
inline bool output_written(const char* program) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return true;
  std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program,
               std::generic_category().message(errno).c_str());
  return false;
}

// Reads the flags and removes them from the arguments, of which so many may be left. `--help` prints and ends the
// program with 0 (1 where what it printed is lost), a mistake with 2.
inline void parse_flags(const char* usage, const FlagSources& sources, int* argc, char*** argv, int arguments = 0) {
  const char* const slash = std::strrchr((*argv)[0], '/');
  const char* const program = slash ? slash + 1 : (*argv)[0];
  int kept = 1;
  bool more_flags = true;
  for (int i = 1; i < *argc; ++i) {
    char* const word = (*argv)[i];
    if (!more_flags || word[0] != '-' || word[1] == 0) {
      if (kept > arguments) refuse_command_line(program, "unknown argument '", word, "'");
      (*argv)[kept++] = word;
      continue;
    }
    std::string name = word + (word[1] == '-' ? 2 : 1);
    more_flags = !name.empty();
    if (!more_flags) continue;
    const std::size_t equals = name.find('=');
    std::string value = equals == std::string::npos ? "true" : name.substr(equals + 1);
    name.resize(std::min(equals, name.size()));
    if (name == "help" || name == "h") {
      std::printf("%s\n\nFlags:\n", usage);
      print_flags(sources);
      std::exit(output_written(program) ? 0 : kExitFailure);
    }
    gflags::CommandLineFlagInfo info;
    bool known = gflags::GetCommandLineFlagInfo(name.c_str(), &info);
    if (!known && name.rfind("no", 0) == 0 && equals == std::string::npos) {
      known = gflags::GetCommandLineFlagInfo(name.c_str() + 2, &info) && info.type == "bool";
      value = "false";
    }
    if (!known) refuse_command_line(program, "unknown flag --", name, nearest_flag(name, sources));
    if (info.type != "bool" && equals == std::string::npos) {
      if (++i == *argc) refuse_command_line(program, "--", name, " needs a value: ", info.description);
      value = (*argv)[i];
    }
    if (gflags::SetCommandLineOption(info.name.c_str(), value.c_str()).empty())
      refuse_command_line(program, "--", name, " is '", value, "', expected ", info.type, ": ", info.description);
  }
  (*argv)[*argc = kept] = nullptr;
  gflags::HandleCommandLineHelpFlags();
}

// What main() returns: what `body` does, exit_code_of() what it throws, and at least 1 where what was printed is lost.
// Log lines go to the standard error from here on, and the limit of open files is the hard one.
template <class Body>
int run_main(const char* program, const Body& body) {
  start_logging(program);
  detail::raise_descriptor_limit();  // a data set may have thousands of shards, and all are open while it is written
  try {
    const int code = body();
    return output_written(program) ? code : std::max(code, kExitFailure);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return exit_code_of(error);
  }
}

// Throws InvalidArgument unless a program can start so many threads; 0: as many as there are cores.
inline int threads_wanted(int threads) {
  constexpr int kMost = 1024;
  require(threads >= 0 && threads <= kMost, "--threads is 0 to ", kMost, ", not ", threads);
  return threads > 0 ? threads : core_budget();
}

}  // namespace paceline::tools
