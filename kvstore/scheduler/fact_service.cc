// Facts: small values that workers share by name. The last value put under a name counts.

#include <message.pb.h>
#include <paceline/error.h>

#include <map>
#include <string>

#include "parse_body.h"
#include "replies.h"
#include "scheduler.h"

namespace paceline {
namespace {

constexpr std::size_t kLongestName = 4096, kLargestValue = std::size_t{1} << 20, kMostBytes = std::size_t{32} << 20;

class FactService final : public SchedulerService {
 public:
  bool on_request(const Request& request) override {
    const MessageKind kind = request.message().header.kind;
    if (kind != MessageKind::kPutFact && kind != MessageKind::kGetFacts) return false;
    if (request.from().role != Role::kWorker)
      throw InvalidArgument("facts are for workers; " + name_of(request.from()) + " asked");
    if (kind == MessageKind::kPutFact)
      put(request, parse_body<proto::Fact>(request.message()));
    else
      get(request, parse_body<proto::GetFacts>(request.message()));
    return true;
  }

 private:
  void put(const Request& request, const proto::Fact& fact) {
    require(!fact.name().empty() && fact.name().size() <= kLongestName, "a fact's name has ", fact.name().size(),
            " bytes, expected 1 to ", kLongestName);
    require(fact.value().size() <= kLargestValue, "fact '", fact.name(), "' has a value of ", fact.value().size(),
            " bytes, expected at most ", kLargestValue);
    const auto known = facts_.find(fact.name());
    const std::size_t before = known == facts_.end() ? 0 : known->first.size() + known->second.size();
    const std::size_t after = bytes_ - before + fact.name().size() + fact.value().size();
    require(after <= kMostBytes, "fact '", fact.name(), "' finds no place: the job's facts would take ", after,
            " bytes, at most ", kMostBytes, "; put fewer names, or the same ones again");
    std::uint64_t& latest = latest_[request.incarnation()];
    if (fact.number() > latest) {
      latest = fact.number();
      facts_[fact.name()] = fact.value();
      bytes_ = after;
    }
    request.reply({});
  }

  void get(const Request& request, const proto::GetFacts& asked) const {
    proto::Facts answer;
    for (auto fact = facts_.lower_bound(asked.prefix());
         fact != facts_.end() && fact->first.compare(0, asked.prefix().size(), asked.prefix()) == 0; ++fact) {
      proto::Fact* entry = answer.add_facts();
      entry->set_name(fact->first);
      entry->set_value(fact->second);
    }
    reply(request, answer);
  }

  std::map<std::string, std::string> facts_;
  std::size_t bytes_ = 0;                          // of names and values
  std::map<std::uint64_t, std::uint64_t> latest_;  // number of the last fact of each worker, by incarnation
};

}  // namespace

std::unique_ptr<SchedulerService> make_fact_service() { return std::make_unique<FactService>(); }

}  // namespace paceline
