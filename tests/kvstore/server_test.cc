// Parts of the servers: layout, clocks, sequence numbers, and what hostile messages do to a running server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <paceline/mode.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <random>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "payload.h"
#include "placement_policy.h"
#include "rows/table_layout.h"
#include "sequence_window.h"
#include "servers/servers.h"
#include "sparse.pb.h"
#include "store.pb.h"
#include "worker_clocks.h"

namespace paceline::test {
namespace {

// Largest load over the mean.
double imbalance(const std::vector<KeyInfo>& keys, int servers) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(servers));
  const std::vector<std::int64_t> bytes = partition_bytes(make_layout(keys, servers, 0, 0));
  const std::vector<int> places = make_balanced_placement(servers)->place_keys(bytes);
  for (std::size_t p = 0; p < bytes.size(); ++p) loads[static_cast<std::size_t>(places[p])] += bytes[p];
  const double mean = static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0})) / servers;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) / mean;
}

KeyInfo key_of(const std::string& name, std::initializer_list<std::int64_t> shape) {
  return {name, DType::kFloat32, Shape(shape), false};
}

// The parameters of ResNet-50, by their shapes.
std::vector<KeyInfo> resnet50() {
  std::vector<KeyInfo> keys{key_of("stem", {64, 3, 7, 7}), key_of("fc.weight", {1000, 2048}),
                            key_of("fc.bias", {1000})};
  std::int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t width = 64LL << stage, out = 4 * width;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string name = "stage" + std::to_string(stage) + "." + std::to_string(block);
      keys.push_back(key_of(name + ".conv1", {width, in, 1, 1}));
      keys.push_back(key_of(name + ".conv2", {width, width, 3, 3}));
      keys.push_back(key_of(name + ".conv3", {out, width, 1, 1}));
      if (block == 0) keys.push_back(key_of(name + ".shortcut", {out, in, 1, 1}));
      for (const char* norm : {".bn1.scale", ".bn1.shift", ".bn2.scale", ".bn2.shift"})
        keys.push_back(key_of(name + norm, {width}));
      in = out;
    }
  }
  return keys;
}

TEST(Layout, SpreadsBytesEvenly) {
  for (const int servers : {1, 2, 4, 16}) EXPECT_LE(imbalance(resnet50(), servers), 1.05) << servers << " servers";
  const std::vector<KeyInfo> lenet{key_of("conv1", {6, 1, 5, 5}), key_of("conv2", {16, 6, 5, 5}),
                                   key_of("fc1", {120, 400}),     key_of("fc2", {84, 120}),
                                   key_of("fc3", {10, 84}),       key_of("bias", {120})};
  EXPECT_LE(imbalance(lenet, 2), 1.05);
  std::vector<KeyInfo> small;
  for (int i = 0; i < 10000; ++i) small.push_back(key_of("key" + std::to_string(i), {256}));
  EXPECT_LE(imbalance(small, 4), 1.05);
}

TEST(Layout, CoversEveryElementOnceAndIgnoresTheOrderOfDeclaration) {
  std::vector<KeyInfo> keys = resnet50();
  keys.push_back(key_of("empty", {0}));
  keys.push_back(key_of("scalar", {}));
  const Layout layout = make_layout(keys, 3, 0, 5);
  std::vector<std::int64_t> covered(layout.keys.size());
  std::vector<std::vector<SliceRange>> ranges(layout.keys.size());
  for (const KeyPartition& partition : layout.partitions) {
    EXPECT_GE(partition.id, 5);
    std::int64_t bytes = 0;
    for (const SliceRange& slice : partition.slices) {
      bytes += 4 * (slice.end - slice.begin);
      ranges[static_cast<std::size_t>(slice.key)].push_back(slice);
    }
    EXPECT_LE(bytes, kPartitionBytes * 3 / 2);
  }
  for (std::size_t k = 0; k < ranges.size(); ++k) {
    std::sort(ranges[k].begin(), ranges[k].end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    std::int64_t next = 0;
    for (const SliceRange& slice : ranges[k]) {
      EXPECT_EQ(slice.begin, next);
      next = slice.end;
    }
    EXPECT_EQ(next, layout.keys[k].shape.size()) << layout.keys[k].name;
  }
  std::reverse(keys.begin(), keys.end());
  wire::InitReply one, other;
  write_layout(layout, &one);
  write_layout(make_layout(keys, 3, 0, 5), &other);
  EXPECT_EQ(one.SerializeAsString(), other.SerializeAsString());
}

TEST(SequenceWindow, TakesEachNumberOnceInAnyOrder) {
  std::mt19937 random(9);
  SequenceWindow window;
  std::vector<std::uint64_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 1);
  for (auto block = numbers.begin(); block != numbers.end(); block += 50) std::shuffle(block, block + 50, random);
  for (const std::uint64_t number : numbers) {
    EXPECT_TRUE(window.plausible(number));
    EXPECT_TRUE(window.take(number));
    EXPECT_FALSE(window.take(number));
    EXPECT_FALSE(window.take(numbers.front()));
  }
  EXPECT_FALSE(window.take(500));
  EXPECT_FALSE(window.plausible(0));
  EXPECT_TRUE(window.plausible(1000 + SequenceWindow::kWidth));
  EXPECT_FALSE(window.plausible(1001 + SequenceWindow::kWidth));
}

// A push that was refused, or could not be sent, leaves a gap for ever.
TEST(SequenceWindow, MovesOnWithoutNumbersThatNeverCome) {
  SequenceWindow window;
  constexpr std::uint64_t kGap = 3, kLast = 3 * SequenceWindow::kWidth;
  for (std::uint64_t number = 1; number <= kLast; ++number) {
    if (number == kGap) continue;
    ASSERT_TRUE(window.plausible(number)) << number;
    ASSERT_TRUE(window.take(number)) << number;
    ASSERT_TRUE(window.has(kGap) == (number >= kGap + SequenceWindow::kWidth)) << number;
  }
  EXPECT_FALSE(window.take(kLast));
  EXPECT_FALSE(window.take(1));
  EXPECT_TRUE(window.has(kGap)) << "it is too old to come";
  EXPECT_FALSE(window.plausible(kLast + SequenceWindow::kWidth + 1));
}

wire::StepEnd step_end(std::uint64_t clock, wire::StepEnd::State state = wire::StepEnd::RUNNING,
                       std::uint64_t number = 0) {
  wire::StepEnd message;
  message.set_clock(clock);
  message.set_state(state);
  message.set_number(number);
  return message;
}

Roster three_workers() {
  Roster roster;
  for (int rank = 0; rank < 3; ++rank) {
    Peer peer;
    peer.id = {Role::kWorker, rank};
    peer.incarnation = static_cast<std::uint64_t>(rank) + 10;
    roster.peers.push_back(peer);
  }
  return roster;
}

TEST(WorkerClocks, CountOnlyWorkersThatContribute) {
  WorkerClocks clocks;
  Roster roster = three_workers();
  const auto end = [&clocks](int worker, std::uint64_t incarnation, const wire::StepEnd& message) {
    clocks.step_end(worker, incarnation, message, {});
  };
  EXPECT_EQ(clocks.slowest(), std::nullopt);
  clocks.set_roster(roster);
  end(0, 10, step_end(5));
  end(1, 11, step_end(3));
  end(1, 11, step_end(2));  // late
  end(2, 99, step_end(7));  // of another incarnation
  EXPECT_EQ(clocks.slowest(), 0U);
  end(2, 12, step_end(4));
  EXPECT_EQ(clocks.slowest(), 3U);

  end(1, 11, step_end(3, wire::StepEnd::INSIDE_BARRIER, 1));
  EXPECT_EQ(clocks.slowest(), 4U);
  end(0, 10, step_end(5, wire::StepEnd::INSIDE_BARRIER, 1));
  end(2, 12, step_end(4, wire::StepEnd::INSIDE_BARRIER, 1));
  EXPECT_EQ(clocks.slowest(), std::nullopt);
  end(2, 12, step_end(5, wire::StepEnd::AFTER_BARRIER, 1));  // takes the others along
  EXPECT_EQ(clocks.slowest(), 5U);
  EXPECT_EQ(clocks.clock(1), 5U);
  end(1, 11, step_end(3, wire::StepEnd::INSIDE_BARRIER, 1));  // repeated late
  EXPECT_TRUE(clocks.contributes(1));

  end(0, 10, step_end(5, wire::StepEnd::PAUSED, 1));
  EXPECT_FALSE(clocks.contributes(0));
  end(0, 10, step_end(9, wire::StepEnd::RESUMED, 1));
  EXPECT_TRUE(clocks.contributes(0));
  end(1, 11, step_end(5, wire::StepEnd::FINISHED));
  EXPECT_FALSE(clocks.contributes(1));
  roster.peers[2].alive = false;
  clocks.set_roster(roster);
  EXPECT_EQ(clocks.slowest(), 9U);
  roster.peers[1].incarnation = 20;  // has returned: is not waited for before it knows the others' clocks
  clocks.set_roster(roster);
  EXPECT_EQ(clocks.slowest(), 9U);
  EXPECT_EQ(clocks.others(1).fastest, 9U);
  end(1, 20, step_end(10, wire::StepEnd::RESUMED, 1));
  end(0, 10, step_end(11));
  EXPECT_EQ(clocks.slowest(), 10U);
}

TEST(WorkerClocks, TellAModeHowLongStepsTake) {
  WorkerClocks clocks;
  clocks.set_roster(three_workers());
  const auto at = [](int seconds) { return WorkerClocks::Time() + std::chrono::seconds(seconds); };
  const auto end = [&](int worker, std::uint64_t clock, int seconds) {
    clocks.step_end(worker, static_cast<std::uint64_t>(worker) + 10, step_end(clock), at(seconds));
  };
  const auto expect = [&](int worker, std::uint64_t step, int asked, const Progress& expected) {
    const Progress progress = clocks.progress(worker, step, at(asked));
    EXPECT_EQ(progress.mine, expected.mine);
    EXPECT_EQ(progress.slowest, expected.slowest);
    EXPECT_DOUBLE_EQ(progress.my_step, expected.my_step);
    EXPECT_DOUBLE_EQ(progress.slowest_step, expected.slowest_step);
    EXPECT_DOUBLE_EQ(progress.slowest_since, expected.slowest_since);
  };
  end(0, 1, 1);
  expect(0, 1, 1, {1, 0});  // one end of a step tells nothing
  end(0, 2, 2);
  end(1, 1, 3);
  end(1, 2, 6);
  end(2, 1, 5);
  expect(0, 2, 7, {2, 1, 1, 0, 2});
  end(2, 2, 9);
  end(0, 5, 8);
  expect(0, 5, 10, {5, 2, 2, 4, 1});  // workers 1 and 2 are slowest, and 2 will take longer
  expect(0, 5, 8, {5, 2, 2, 4, 0});   // asked before the slowest had come so far
  // Time that a worker was held back is no part of its step, nor is a barrier's.
  clocks.released(0, 5, at(9), at(12));
  end(0, 6, 13);
  expect(0, 6, 13, {6, 2, 1, 4, 4});
  for (int rank = 0; rank < 3; ++rank)
    clocks.step_end(rank, static_cast<std::uint64_t>(rank) + 10, step_end(6, wire::StepEnd::INSIDE_BARRIER, 1), at(20));
  clocks.step_end(0, 10, step_end(6, wire::StepEnd::AFTER_BARRIER, 1), at(50));
  end(0, 7, 52);
  expect(0, 7, 53, {7, 6, 2, 4, 3});

  // What dist_async makes of it: worker 2 will have ended its step at 54, which worker 0 meets by one step more.
  const auto mode = make_mode(Spec::parse("dist_async:bound=0..4"));
  EXPECT_TRUE(mode->may_pull(clocks.progress(0, 7, at(52))));
  EXPECT_FALSE(mode->may_pull(clocks.progress(0, 7, at(53))));
  EXPECT_FALSE(make_mode(Spec::parse("dist_async:bound=0"))->may_pull(clocks.progress(0, 7, at(52))));

  // Held back before the end of its step was told: no part of the step either.
  clocks.released(0, 8, at(54), at(60));
  end(0, 8, 61);
  expect(0, 8, 61, {8, 6, 3, 4, 11});
}

TEST(Payload, KeepsRunsWholeAndAligned) {
  std::mt19937 random(13);
  std::vector<std::vector<std::byte>> runs;
  PayloadWriter writer;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> run(i % 50 == 49 ? kLargeRun + i : random() % 700);
    for (std::byte& b : run) b = static_cast<std::byte>(random());
    runs.push_back(std::move(run));
  }
  const auto owner = std::make_shared<int>();
  for (const auto& run : runs) writer.add(run.data(), run.size(), run.size() >= kLargeRun ? owner : nullptr);
  const std::vector<Frame> frames = writer.finish();
  PayloadReader reader(frames);
  for (const auto& run : runs) {
    const std::byte* data = reader.next(run.size());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 8, 0U);
    EXPECT_TRUE(std::equal(run.begin(), run.end(), data));
  }
  reader.expect_end();
  EXPECT_THROW(reader.next(1), Corrupt);
  PayloadReader early(frames);
  EXPECT_THROW(early.expect_end(), Corrupt);
}

// Otherwise a reader would look for the second run behind a gap.
TEST(Payload, RunsOfOneArrayShareAFrameWhereTheSecondIsAligned) {
  const auto owner = std::make_shared<std::vector<std::byte>>(2 * kLargeRun + 16);
  for (std::size_t i = 0; i < owner->size(); ++i) (*owner)[i] = static_cast<std::byte>(i * 31 >> 4);
  for (const std::size_t first : {kLargeRun, kLargeRun + 4}) {
    PayloadWriter writer;
    writer.add(owner->data(), first, owner);
    writer.add(owner->data() + first, kLargeRun, owner);
    const std::vector<Frame> frames = writer.finish();
    EXPECT_EQ(frames.size(), first % 8 == 0 ? 1U : 2U);
    PayloadReader reader(frames);
    EXPECT_TRUE(std::equal(owner->data(), owner->data() + first, reader.next(first)));
    EXPECT_TRUE(std::equal(owner->data() + first, owner->data() + first + kLargeRun, reader.next(kLargeRun)));
    reader.expect_end();
  }
}

// Changes a few bytes, or cuts.
std::string mutate(std::string text, std::mt19937& random) {
  for (int n = static_cast<int>(random() % 4); n >= 0 && !text.empty(); --n) {
    const std::size_t at = random() % text.size();
    switch (random() % 4) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, random() % 8); break;
      case 2: text.insert(at, std::string(random() % 8, static_cast<char>(random()))); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

// A peer of the job that sends nonsense gets refusals; the server and the others go on.
TEST(Server, RefusesMalformedMessagesAndGoesOn) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  ClusterConfig base = job_config("inproc", 1, 2);
  SchedulerThread scheduler(base);
  Server server(member(base, Role::kServer, 0), {}, 2);
  std::thread serving([&] { server.run(); });
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  std::unique_ptr<Node> node;
  std::thread joining([&] {
    node = std::make_unique<Node>(member(base, Role::kWorker, 0, 1), Node::Handlers{});
    node->join();
  });
  const auto backend = make_servers_backend(member(base, Role::kWorker, 0, 0), Spec::parse("dist_async"), options);
  joining.join();

  const NDArray weight = NDArray::full(Shape{64}, 1, DType::kFloat64, {}, *engine);
  wire::InitRequest init;
  init.set_call(1);
  init.set_mode("dist_async");
  write_key({"w", DType::kFloat64, Shape{64}, false}, init.add_keys());
  std::thread initialising([&] { backend->init({{"w", weight}}); });
  ask(*node, MessageKind::kInit, init.SerializeAsString());
  init.set_values(true);
  ask(*node, MessageKind::kInit, init.SerializeAsString());
  init.set_values(false);
  init.set_held(true);
  ask(*node, MessageKind::kInit, init.SerializeAsString());
  initialising.join();

  wire::PushPullRequest push;
  push.set_examples(1);
  wire::Part* part = push.add_parts();
  part->set_sequence(1);
  part->add_push(0);
  part->add_base(0);
  part->add_pull(0);
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer("sgd:lr=1");
  rules.set_staleness("none");
  wire::LoadRequest load;
  load.add_slices()->add_names("weight");
  load.add_blobs()->set_name("blob");
  load.mutable_blobs(0)->add_shape(64);
  wire::SaveRequest save;
  wire::InitValuesRequest values;
  values.set_mode("dist_async");
  write_key({"x", DType::kFloat64, Shape{64}, false}, values.add_keys());
  values.mutable_partition()->set_id(7);
  values.mutable_partition()->add_slices()->set_end(64);
  const TableSpec table{.name = "table", .rows = 100, .width = 122};
  backend->init_tables({table});
  wire::DeclareTable declare;
  write_table(table, &declare);
  declare.set_mode("dist_async");
  declare.mutable_placement()->set_group(hash_key("table"));
  for (int p = 0; p < TableLayout::partitions_for(table, 1); ++p) declare.mutable_placement()->add_servers(0);
  wire::PushPullRowsRequest rows;
  rows.set_examples(1);
  wire::RowPart* row_part = rows.add_parts();
  row_part->set_table(hash_key("table"));
  row_part->set_sequence(1);
  row_part->set_pushed(1);
  row_part->set_pulled(1);
  wire::SaveRowsRequest save_rows;
  save_rows.set_table(hash_key("table"));
  wire::LoadRowsRequest load_rows;
  load_rows.set_table(hash_key("table"));
  load_rows.set_load(1);
  load_rows.mutable_rows()->set_count(1);
  load_rows.mutable_rows()->add_names("weight");
  const std::vector<std::pair<MessageKind, std::string>> valid = {
      {MessageKind::kDeclareTable, declare.SerializeAsString()},
      {MessageKind::kPushPullRows, rows.SerializeAsString()},
      {MessageKind::kSaveRows, save_rows.SerializeAsString()},
      {MessageKind::kLoadRows, load_rows.SerializeAsString()},
      {MessageKind::kPushPull, push.SerializeAsString()},
      {MessageKind::kSetRules, rules.SerializeAsString()},
      {MessageKind::kLoad, load.SerializeAsString()},
      {MessageKind::kSave, save.SerializeAsString()},
      {MessageKind::kInitValues, values.SerializeAsString()},
      {MessageKind::kStepEnd, step_end(3).SerializeAsString()},
      {MessageKind::kReport, ""}};
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto& [kind, body] = valid[random() % valid.size()];
    std::vector<Frame> payload;
    for (std::size_t n = random() % 3; n > 0; --n)
      payload.push_back(Frame::of(std::string(random() % 4 == 0 ? random() % 2000 : 512, '\0')));
    try {
      ask(*node, kind, mutate(body, random), std::move(payload));
    } catch (const NetworkError& error) {
      FAIL() << error.what();
    } catch (const Error& error) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  // Sizes and numbers that do not fit are named.
  for (const std::int64_t count : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    const std::string named = str("counts ", count, " examples or updates");
    load.mutable_slices(0)->set_optimizer_updates(count);
    EXPECT_THAT(error_of_call([&] { ask(*node, MessageKind::kLoad, load.SerializeAsString()); }),
                testing::HasSubstr(named));
    load_rows.mutable_rows()->set_examples(count);
    EXPECT_THAT(error_of_call([&] { ask(*node, MessageKind::kLoadRows, load_rows.SerializeAsString()); }),
                testing::HasSubstr(named));
    load.mutable_slices(0)->set_optimizer_updates(0);
    load.mutable_slices(0)->set_version(static_cast<std::uint64_t>(count));
    EXPECT_THAT(error_of_call([&] { ask(*node, MessageKind::kLoad, load.SerializeAsString()); }),
                testing::HasSubstr(named));
    load.mutable_slices(0)->set_version(0);
    load_rows.mutable_rows()->set_examples(0);
    std::string row(2 * sizeof count + 122 * sizeof(float), '\0');  // row 0, its version and its weights
    std::memcpy(row.data() + sizeof count, &count, sizeof count);
    EXPECT_THAT(
        error_of_call([&] { ask(*node, MessageKind::kLoadRows, load_rows.SerializeAsString(), {Frame::of(row)}); }),
        testing::HasSubstr(named));
  }
  EXPECT_NE(error_of_call([&] { ask(*node, MessageKind::kPushPull, push.SerializeAsString()); }).find("512 bytes"),
            std::string::npos);
  part->set_push(0, 9);
  EXPECT_NE(error_of_call([&] { ask(*node, MessageKind::kPushPull, push.SerializeAsString()); }).find("no slice 9"),
            std::string::npos);
  part->set_partition(99);
  EXPECT_NE(
      error_of_call([&] { ask(*node, MessageKind::kPushPull, push.SerializeAsString()); }).find("no partition 99"),
      std::string::npos);

  // The same of rows: ids that do not ascend, or are of another partition, or more than were sent.
  const auto ask_rows = [&](std::vector<std::int64_t> numbers) {
    numbers.resize(64);
    return error_of_call([&] {
      ask(*node, MessageKind::kPushPullRows, rows.SerializeAsString(),
          {Frame::of(std::string(reinterpret_cast<const char*>(numbers.data()), 512))});
    });
  };
  row_part->set_sequence(2);
  EXPECT_EQ(ask_rows({0}), "");
  row_part->set_sequence(3);
  EXPECT_NE(ask_rows({-1}).find("names row -1"), std::string::npos);
  EXPECT_NE(ask_rows({std::int64_t{1} << 62}).find("in partition 0"), std::string::npos);
  // A gradient in an array of one row, whose place is the third number.
  row_part->set_array(1);
  row_part->set_same(true);
  EXPECT_NE(ask_rows({0, 0, 5}).find("has a gradient at 5 of 1 + 0"), std::string::npos);
  EXPECT_EQ(ask_rows({0, 0, 0}), "");
  row_part->set_array(std::uint64_t{1} << 60);
  EXPECT_NE(ask_rows({0}).find("announces 1152921504606846976 rows"), std::string::npos);
  row_part->clear_array();
  row_part->set_pushed(std::uint64_t{1} << 60);
  EXPECT_NE(ask_rows({0}).find("announces 1152921504606846976 rows"), std::string::npos);
  row_part->set_partition(77);
  EXPECT_NE(ask_rows({0}).find("no partition 77 of table 'table'"), std::string::npos);
  row_part->set_table(1);
  EXPECT_NE(ask_rows({0}).find("no such table"), std::string::npos);

  backend->pull({{"w", weight}}, 0);
  weight.wait();
  node->leave();
  backend->finish();
  serving.join();
}

}  // namespace
}  // namespace paceline::test
