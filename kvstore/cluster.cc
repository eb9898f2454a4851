#include <paceline/cluster.h>

namespace paceline {

const char* name_of(Role role) {
  switch (role) {
    case Role::kScheduler:
      return "scheduler";
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
  }
  return "unknown";
}

}  // namespace paceline
