// Calls of a worker that fail while their messages are made.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvstore/row_support.h>
#include <paceline/engine.h>

#include "cluster_in_process.h"
#include "send/transfer.h"
#include "servers/rows.h"

namespace paceline {
namespace {

using testing::HasSubstr;

// What a task ended with.
struct Ended final : Completion::Target {
  int times = 0;
  std::string error;

  void complete(void*, std::exception_ptr failure) override {
    ++times;
    error = test::error_of_call([&] {
      if (failure) std::rethrow_exception(failure);
    });
  }
};

// No partition has a server here: a call throws while it makes its first message, as where memory runs out.
class WithoutServers : public testing::Test {
 protected:
  StoreCall::Route route_{&outboxes_, &coalescers_, std::make_shared<const Placement>(1), std::make_shared<Pending>(),
                          &waited_};
  const std::unique_ptr<Engine> engine_ = make_serial_engine();
  Ended ended_;

 private:
  std::vector<std::unique_ptr<Outbox>> outboxes_;
  std::vector<std::unique_ptr<Coalescer>> coalescers_;
  std::atomic<std::int64_t> waited_ = 0;
};

TEST_F(WithoutServers, ACallOfRowsEnds) {
  const TableSpec spec = test::table_of(10, 2);
  RemoteTable table(spec, 1, *engine_);
  RowTransfer::Item item{&table, test::ids_of({1, 4}, *engine_), test::rows_of({1, 2, 3, 4}, 2, *engine_), {}, {}};
  const auto call = std::make_shared<RowTransfer>(route_, std::vector{item}, nullptr, 1, 1, 0, false);
  call->start(Completion(&ended_, nullptr));
  EXPECT_EQ(ended_.times, 1);
  EXPECT_THAT(ended_.error, HasSubstr("has no place"));
}

TEST_F(WithoutServers, ACallOfKeysEnds) {
  for (const std::int64_t count : {8, 1 << 20}) {
    RemotePartition partition;
    RemoteKey key;
    key.info = {"w", DType::kFloat32, Shape{count}};
    key.order = engine_->new_variable();
    key.slices.push_back({&partition, 0, 0, count});
    const NDArray gradient = NDArray::zeros(Shape{count}, DType::kFloat32, {}, *engine_);
    const auto call = std::make_shared<Transfer>(
        route_, std::vector{Transfer::Item{&key, Transfer::Bytes::of(gradient), {}}}, nullptr, 1, 0);
    Ended ended;
    call->start(Completion(&ended, nullptr));
    EXPECT_EQ(ended.times, 1) << count;
    EXPECT_THAT(ended.error, HasSubstr("has no place"));
  }
}

}  // namespace
}  // namespace paceline
