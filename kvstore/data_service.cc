#include "scheduler.h"

namespace paceline {
namespace {
class DataService final : public SchedulerService {
 public:
  bool on_request(const Request&) override { return false; }
};
}  // namespace
std::unique_ptr<SchedulerService> make_data_service() { return std::make_unique<DataService>(); }
}  // namespace paceline
