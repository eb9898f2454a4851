#pragma once
// Signals that end a program, noticed where it can take away the files that it has begun.

#include <paceline/error.h>

#include <atomic>
#include <csignal>

namespace paceline::tools {

// Set by signals, on whichever thread.
inline std::atomic<bool> interrupted = false;

inline void notice_signals() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM})
    if (std::signal(signal, [](int) { interrupted = true; }) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

// Throws IoError after a signal.
inline void stop_if_interrupted() {
  if (interrupted) throw IoError("interrupted; nothing was written");
}

}  // namespace paceline::tools
