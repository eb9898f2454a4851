// Compression of a whole job.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/error.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <array>
#include <cmath>
#include <future>
#include <map>

#include "failed_array.h"
#include "hand_made_worker.h"
#include "key_partition.h"
#include "pushed.h"
#include "send/compression_setting.h"
#include "send/compressor.h"
#include "servers/servers.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

TEST(Compression, DgcTakesTheMomentumOfTheOptimizer) {
  ClusterInProcess cluster(
      {.mode = "dist_async:compression=dgc,ratio=1,warmup=0,min_bytes=0", .workers = 1, .servers = 1});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    EXPECT_THROW(store.set_optimizer(optim::Adam{}), InvalidArgument);
    EXPECT_THROW(store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5, .clip_gradient = 1}), InvalidArgument);
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    for (int step = 0; step < 2; ++step)
      store.push_pull({{"w", NDArray::full(Shape{2}, 1, DType::kFloat32, {}, engine)}}, {{"w", weight}});
    // Everything is sent, and with it the momentum is forgotten: 1 + 1, not 1 + 1.5.
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{-2, -2}));
  });
  ClusterInProcess both({.mode = "dist_async:staleness=dana,compression=dgc", .workers = 1, .servers = 1});
  EXPECT_THROW(both.worker(0).set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5}), InvalidArgument);
}

// A call that waits for its gradient keeps the codecs that it began with. The address sanitizer would see otherwise.
TEST(Compression, AnOptimizerMayBeSetAgainWhileACallWaits) {
  std::promise<void> gate;  // outlives the engine's task
  ClusterInProcess cluster({.mode = "dist_async:compression=dgc,ratio=1,warmup=0,min_bytes=0,pull=fp16",
                            .workers = 1,
                            .servers = 1,
                            .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{2}, DType::kFloat32, {}, engine);
    const NDArray gradient = NDArray::full(Shape{2}, 1, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    engine.push({"late gradient"}, {}, {{gradient.variable()}}, [&](TaskContext&) { gate.get_future().wait(); });
    store.push_pull({{"w", gradient}}, {{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.5});
    gate.set_value();
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{-0.5f, -0.5f}));
  });
}

// T2.7: weights that travel as bf16 have a master at the server that takes small steps.
TEST(Compression, WeightsThatTravelAsBf16KeepTheirMaster) {
  ClusterInProcess cluster(
      {.mode = "dist_async:staleness=none,compression=bf16,min_bytes=0", .workers = 1, .servers = 1});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = NDArray::full(Shape{4}, 1, DType::kFloat32, {}, cluster.engine(worker));
    const NDArray gradient = NDArray::full(Shape{4}, -1e-3, DType::kFloat32, {}, cluster.engine(worker));
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    for (int step = 0; step < 1000; ++step) store.push_pull({{"w", gradient}}, {{"w", weight}});
    weight.wait();
    EXPECT_NEAR(static_cast<double>(store.save().arrays.front().second.to_vector<float>()[0]), 1.99945, 0.0002);
    EXPECT_EQ(weight.to_vector<float>()[0], 2);  // to the nearest bf16
  });
}

// The momentum of a vote is the optimizer's, kept by the worker: the servers run plain SGD.
TEST(Compression, VotesTakeTheMomentumOfTheOptimizer) {
  ClusterInProcess cluster({.mode = "dist_sync:compression=sign,majority=1", .workers = 2, .servers = 1});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = NDArray::zeros(Shape{3}, DType::kFloat32, {}, cluster.engine(worker));
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.9});
    const std::vector<std::vector<float>> gradients = {{8, -8, worker == 0 ? 1.0f : -1.0f}, {-1, 1, 2}};
    for (const auto& gradient : gradients) {
      store.push_pull({{"w", NDArray::from<float>(gradient, Shape{3}, {}, cluster.engine(worker))}}, {{"w", weight}});
      store.step_end();
    }
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{-1, 1, -0.5f}));
    for (const auto& [name, array] : store.save().arrays) {
      if (name.ends_with("w/velocity")) {
        EXPECT_NEAR(static_cast<double>(array.to_vector<float>()[0]), 0.9 * 8 - 1, 1e-6);
      }
    }
  });
}

// Without weight_decay, what is sent as it is trains as it does without the codec: float32 and float64 keys by momentum
// of the worker's, tables by the server's. In the middle the job is saved and loaded.
TEST(Compression, WhatTravelsRawKeepsTheMomentum) {
  for (const char* optimizer : {"momentum:lr=0.5,momentum=0.9", "nesterov:lr=0.5,momentum=0.9"}) {
    std::map<std::string, std::vector<double>> weights;
    for (const char* codec : {"none", "dgc,ratio=0.01", "sign,majority=1,min_bytes=4096"}) {
      ClusterInProcess cluster({.mode = str("dist_sync:compression=", codec)});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        const NDArray single = NDArray::zeros(Shape{3}, DType::kFloat32, {}, engine);
        const NDArray twofold = NDArray::zeros(Shape{3}, DType::kFloat64, {}, engine);
        const NDArray large = NDArray::zeros(Shape{2000}, DType::kFloat32, {}, engine);
        const NDArray rows = NDArray::zeros(Shape{2, 2}, DType::kFloat32, {}, engine);
        const NDArray ids = NDArray::from<std::int64_t>({3, 5}, Shape{2}, {}, engine);
        store.init({{"single", single}, {"twofold", twofold}, {"large", large}});
        store.init_table({.name = "table", .rows = 10, .width = 2});
        store.set_optimizer(Spec::parse(optimizer));
        for (int step = 0; step < 6; ++step) {
          const double value = (worker + 1) * (step % 3 - 0.5);
          const auto gradient = [&](const NDArray& weight) {
            return NDArray::full(weight.shape(), value, weight.dtype(), {}, engine);
          };
          store.push_pull({{"single", gradient(single)}, {"twofold", gradient(twofold)}, {"large", gradient(large)}},
                          {{"single", single}, {"twofold", twofold}, {"large", large}}, worker + 1);
          store.push_pull_rows({{"table", ids, gradient(rows)}}, {{"table", ids, rows}}, worker + 1);
          store.step_end();
          if (step == 2) store.load(store.save());
        }
        if (worker != 0) return;
        std::vector<double>& found = weights[codec];
        found = twofold.to_vector<double>();
        for (const NDArray& array : {single, rows})
          for (const float weight : array.to_vector<float>()) found.push_back(static_cast<double>(weight));
      });
    }
    for (const auto& [codec, found] : weights)
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], weights["none"][i], 1e-5) << codec << " " << optimizer << " " << i;
    EXPECT_GT(std::abs(weights["none"][0]), 0.1);
  }
}

// A link so fast that no codec pays, and one so slow that every one does.
TEST(Compression, IsLeftOutWhereItWasMeasuredNotToPay) {
  for (const bool pays : {false, true}) {
    ClusterInProcess cluster(
        {.mode = str("dist_async:staleness=none,compression=top_k,bandwidth=", pays ? "1" : "1e300"),
         .workers = 1,
         .servers = 1});
    cluster.run([&](int worker, KVStore& store) {
      const NDArray weight = NDArray::zeros(Shape{10000}, DType::kFloat32, {}, cluster.engine(worker));
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      store.push("w", NDArray::full(Shape{10000}, -1, DType::kFloat32, {}, cluster.engine(worker)));
      store.pull("w", weight);
      double sum = 0;
      for (const float value : weight.to_vector<float>()) sum += static_cast<double>(value);
      EXPECT_EQ(sum, pays ? 100 : 10000);
    });
  }
}

// Every codec saves bytes where that was measured, and takes time.
TEST(Compression, IsDecidedByTheBandwidthGivenOrSeen) {
  const auto engine = make_serial_engine();
  RemotePartition partition;
  RemoteKey key;
  key.info = {"w", DType::kFloat32, Shape{100, 100}, false};
  key.slices = {{&partition, 0, 0, 10000, 0}};
  const NDArray gradient = NDArray::full(Shape{100, 100}, 1, DType::kFloat32, {}, *engine);
  const auto compressor = [&](const std::string& codec, const char* bandwidth) {
    Options options = Options::parse("compression=" + codec + ",bandwidth=" + bandwidth);
    return Compressor(CompressionSetting::take(&options), *engine);
  };
  const auto encodes = [&](Compressor& by) { return by.encode(key.info, key.slices, gradient, 0, 1, 0) != nullptr; };
  for (const auto& [name, make] : compression_catalog().entries()) {
    if (name == "none") continue;
    SCOPED_TRACE(name);
    Compressor slow = compressor(name, "1"), fast = compressor(name, "1e300");
    EXPECT_TRUE(encodes(slow));
    EXPECT_FALSE(encodes(fast));
    Compressor seen = compressor(name, "measured"), quick = compressor(name, "measured");
    seen.saw_transfer(1, 1);
    EXPECT_TRUE(encodes(seen));
    quick.saw_transfer(1, 1);
    quick.saw_transfer(1e300, 1);  // the fastest of all counts
    quick.saw_transfer(1, 1);
    EXPECT_FALSE(encodes(quick));
    slow.saw_transfer(1e300, 1);  // what was given stays
    EXPECT_EQ(slow.pull_codec(key.info) != nullptr, make_codec(Spec{name, {}})->suits_weights());
    EXPECT_EQ(quick.pull_codec(key.info), nullptr);
  }
}

TEST(CompressionSetting, TakesItsOwnKeysOutOfAMode) {
  const auto parse = [](const std::string& text) { return ModeSetting::parse(Spec::parse(text)); };
  const ModeSetting setting = parse(
      "dist_async:bound=2,compression=top_k,ratio=0.1,staleness=delay_compensated,lambda=1,pull=bf16,except=*bias*+bn?,"
      "min_bytes=8");
  EXPECT_EQ(setting.compression.push.text(), "top_k:ratio=0.1");
  EXPECT_EQ(setting.compression.pull.text(), "bf16");
  EXPECT_EQ(setting.staleness_options.text(), "lambda=1");
  const auto covers = [&](const KeyInfo& key) { return setting.compression.covers(key); };
  EXPECT_TRUE(covers({"fc/weight", DType::kFloat32, Shape{2}, false}));
  EXPECT_FALSE(setting.compression.measured);
  const auto slow = parse("dist_sync:compression=bf16,bandwidth=1e8").compression;
  EXPECT_TRUE(slow.measured);
  EXPECT_EQ(slow.bandwidth, 1e8);
  EXPECT_TRUE(parse("dist_sync:compression=bf16,bandwidth=measured").compression.measured);
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat64, Shape{2}, false}));
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat32, Shape{2}, true}));
  EXPECT_FALSE(covers({"fc/weight", DType::kFloat32, Shape{1}, false}));
  EXPECT_FALSE(covers({"fc/bias", DType::kFloat32, Shape{2}, false}));
  EXPECT_FALSE(covers({"bn1", DType::kFloat32, Shape{2}, false}));
  EXPECT_TRUE(covers({"bn12", DType::kFloat32, Shape{2}, false}));

  EXPECT_EQ(parse("dist_sync:compression=fp16").compression.pull.text(), "fp16");
  EXPECT_EQ(parse("dist_sync:compression=fp16,pull=none").compression.pull.text(), "none");
  EXPECT_FALSE(parse("dist_sync").compression.active());
  // A raw gradient is no vote.
  EXPECT_EQ(parse("dist_sync:compression=sign").compression.min_bytes, 4096);
  EXPECT_EQ(parse("dist_sync:compression=sign,majority=1").compression.min_bytes, 0);
  EXPECT_EQ(parse("dist_sync:compression=sign,majority=1,min_bytes=9").compression.min_bytes, 9);
  EXPECT_THROW(parse("dist_sync:compression=zip"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,treshold=1"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,threshold=0"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=top_k,ratio=2"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,bandwidth=fast"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:compression=2bit,bandwidth=0"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:pull=2bit"), InvalidArgument);
  EXPECT_THROW(parse("dist_sync:except=*bias"), InvalidArgument);
  EXPECT_THROW(KVStore::create("local:compression=2bit"), InvalidArgument);
}

TEST(CompressionSetting, MustBeTheSameAtEveryWorker) {
  ClusterConfig base = job_config("inproc", 1, 2);
  SchedulerThread scheduler(base);
  Server server(member(base, Role::kServer, scheduler.port()), {}, 1);
  std::thread serving([&] { EXPECT_NO_THROW(server.run()); });
  std::vector<std::thread> threads;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const Spec mode = Spec::parse(i == 0 ? "dist_sync:compression=2bit" : "dist_sync:compression=top_k");
      const auto engine = make_serial_engine();
      StoreOptions options;
      options.engine = engine.get();
      KVStore store(make_servers_backend(member(base, Role::kWorker, scheduler.port(), i), mode, options), mode);
      try {
        store.init({{"w", NDArray::zeros(Shape{4}, DType::kFloat32, {}, *engine)}});
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("top_k"), std::string::npos) << error.what();
        ++refused;
      }
      store.finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  serving.join();
  EXPECT_EQ(refused, 2);
}

// What no worker of ours sends is refused whole: nothing is applied, and the server goes on.
TEST(Compression, ServersRefuseWhatCannotBeDecoded) {
  HandMadeWorker worker;
  // Slice 0 is 64 float32, slice 1 is 4 float64, all zero.
  wire::InitValuesRequest values;
  values.set_mode("dist_async");
  write_key({"w", DType::kFloat32, Shape{64}, false}, values.add_keys());
  write_key({"d", DType::kFloat64, Shape{4}, false}, values.add_keys());
  values.mutable_partition()->add_slices()->set_end(64);
  values.mutable_partition()->add_slices()->set_end(4);
  values.mutable_partition()->mutable_slices(1)->set_key(1);
  worker.ask(MessageKind::kInitValues, values, {Frame::of(std::string(256 + 32, '\0'))});
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer("sgd:lr=1");
  rules.set_staleness("none");
  worker.ask(MessageKind::kSetRules, rules);

  const auto codec = codec_of("top_k:ratio=0.05,error_feedback=0");
  std::vector<float> gradient(64);
  gradient[40] = -1;
  const Pushed sound = push(*codec, gradient);
  wire::PushPullRequest request;
  request.set_examples(1);
  request.add_codecs("top_k:ratio=0.05");
  request.add_codecs("bf16");
  wire::Part* part = request.add_parts();
  part->set_sequence(1);
  part->add_push(0);
  part->add_base(0);
  part->add_push_codec(1);
  part->add_push_bytes(sound.bytes.size());
  part->add_pull(0);
  part->add_pull_codec(2);
  const auto refusal = [&](const std::function<void(wire::PushPullRequest*)>& damage,
                           const std::vector<std::byte>& bytes) {
    wire::PushPullRequest damaged = request;
    damage(&damaged);
    return error_of_call([&] { worker.ask(MessageKind::kPushPull, damaged, {worker.frame(bytes)}); });
  };
  const auto expect_refusal = [&](const char* because, const std::function<void(wire::PushPullRequest*)>& damage) {
    const std::string text = refusal(damage, sound.bytes);
    EXPECT_NE(text.find(because), std::string::npos) << because << ": " << text;
  };
  expect_refusal("zip", [](auto* m) { m->set_codecs(0, "zip"); });
  expect_refusal("none", [](auto* m) { m->set_codecs(0, "none"); });
  expect_refusal("codec 3 of 2", [](auto* m) { m->mutable_parts(0)->set_push_codec(0, 3); });
  expect_refusal("cannot come encoded", [](auto* m) { m->mutable_parts(0)->clear_push_bytes(); });
  expect_refusal("cannot come encoded", [](auto* m) { m->mutable_parts(0)->set_push(0, 1); });
  expect_refusal("fewer than", [](auto* m) { m->mutable_parts(0)->set_push_bytes(0, std::uint64_t{1} << 62); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->mutable_parts(0)->set_pull_codec(0, 1); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->mutable_parts(0)->set_pull(0, 1); });
  expect_refusal("cannot be pulled encoded", [](auto* m) { m->set_codecs(1, "bf16:error_feedback=1"); });
  expect_refusal("more than 64 codecs", [](auto* m) {
    for (int i = 0; i < 70; ++i) m->add_codecs(str("2bit:threshold=", i + 1));
  });
  wire::LoadRequest load;
  load.add_slices()->set_slice(2);
  EXPECT_NE(error_of_call([&] { worker.ask(MessageKind::kLoad, load); }).find("a slice that does not exist"),
            std::string::npos);
  std::vector<std::byte> outside = sound.bytes;
  outside[4] = std::byte{64};
  EXPECT_NE(refusal([](auto*) {}, outside).find("index"), std::string::npos);

  // The same push, in order, is applied: none of those before counted.
  wire::PushPullReply reply;
  const Message answer = worker.ask(MessageKind::kPushPull, request, {worker.frame(sound.bytes)});
  ASSERT_TRUE(reply.ParseFromString(answer.body));
  EXPECT_EQ(reply.versions(0), 1u);
  ASSERT_EQ(reply.pull_bytes_size(), 1);
  EXPECT_EQ(reply.pull_bytes(0), 128u);
  std::vector<float> weights(64), expected(64);
  expected[40] = 1;
  codec_of("bf16")->decode({answer.payload[0].data, 128}, 64, 0, weights);
  EXPECT_EQ(weights, expected);
}

// What error feedback, momentum and warm-up remember is in the checkpoint.
TEST(Compression, AResumedJobGoesOnAsIfItHadNotStopped) {
  constexpr std::int64_t kCount = 5000;
  for (const char* codec : {"2bit", "dgc,warmup=3,ratio=0.01", "qsgd", "random_k", "power_sgd"}) {
    SCOPED_TRACE(codec);
    const std::string mode = str("dist_sync:compression=", codec);
    const auto steps = [&](int worker, KVStore& store, Engine& engine, const NDArray& weight, int from, int to) {
      for (int step = from; step < to; ++step) {
        const std::vector<float> values = gaussian(kCount, static_cast<unsigned>(10 * step + worker));
        store.push_pull({{"w", NDArray::from<float>(values, Shape{kCount / 100, 100}, {}, engine)}}, {{"w", weight}});
        store.step_end();
      }
      weight.wait();
    };
    std::vector<float> whole, resumed;
    StoreState saved;
    for (const bool resume : {false, true}) {
      ClusterInProcess cluster({.mode = mode, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        const NDArray weight = NDArray::zeros(Shape{kCount / 100, 100}, DType::kFloat32, {}, engine);
        store.init({{"w", weight}});
        store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
        if (resume) {
          store.load(worker == 0 ? saved : StoreState{});
        } else {
          steps(worker, store, engine, weight, 0, 5);
          const StoreState state = store.save();
          if (worker == 0) {
            for (const auto& [name, array] : state.arrays) {
              // Of another engine: this cluster's end with it.
              const NDArray copy = array.dtype() == DType::kFloat64
                                       ? NDArray::from<double>(array.to_vector<double>(), array.shape())
                                       : NDArray::from<float>(array.to_vector<float>(), array.shape());
              saved.arrays.emplace_back(name, copy);
            }
            saved.counters = state.counters;
          }
        }
        steps(worker, store, engine, weight, 5, 10);
        if (worker == 0) (resume ? resumed : whole) = weight.to_vector<float>();
      });
    }
    EXPECT_EQ(whole, resumed);
  }
}

// The second gradient of four fails. What a worker keeps is as if it had not been.
TEST(Compression, WhatIsKeptOutlivesAFailedGradient) {
  struct Case {
    const char* mode;
    DType type;
    double momentum, gradient;
    std::vector<double> weights;  // after each gradient that does not fail
  };
  for (const Case& expected :
       {Case{"dist_sync:compression=2bit,threshold=1,min_bytes=1,pull=none", DType::kFloat32, 0, -0.4, {0, 0, 1}},
        Case{"ring:compression=2bit,threshold=1,min_bytes=1,pull=none", DType::kFloat32, 0, -0.4, {0, 0, 1}},
        Case{"dist_sync:compression=power_sgd,rounds=2,min_bytes=1", DType::kFloat32, 0, -0.5, {0.5, 1, 1.5}},
        // Not encoded, but the codec takes the momentum.
        Case{"dist_sync:compression=sign,majority=1", DType::kFloat64, 0.5, -1, {1, 2.5, 4.25}}}) {
    SCOPED_TRACE(expected.mode);
    const int servers = std::string(expected.mode).starts_with("ring") ? 0 : 1;
    ClusterInProcess cluster({.mode = expected.mode, .workers = 1, .servers = servers, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros(Shape{2, 2}, expected.type, {}, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = expected.momentum});
      std::size_t next = 0;
      for (int step = 0; step < 4; ++step) {
        const NDArray gradient = NDArray::full(Shape{2, 2}, expected.gradient, expected.type, {}, engine);
        const bool fails = step == 1;
        if (fails) fail(gradient);
        store.push_pull({{"w", gradient}}, {{"w", weight}}, 1);
        store.step_end();
        if (fails) {
          EXPECT_THROW(weight.wait(), InvalidArgument);
          store.set_optimizer(optim::SGD{.lr = 1, .momentum = expected.momentum});
          continue;
        }
        ASSERT_EQ(error_of_call([&] { weight.wait(); }), "") << "step " << step;
        const double value = expected.type == DType::kFloat64 ? weight.to_vector<double>()[3]
                                                              : static_cast<double>(weight.to_vector<float>()[3]);
        EXPECT_NEAR(value, expected.weights[next++], 1e-5) << "step " << step;
      }
    });
  }
}

// The policy compares with the weights that a worker has, not with the master's.
TEST(Compression, PoliciesRememberTheWeightsThatWorkersGot) {
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "delay_compensated", Options::parse("adaptive=0,lambda=1,clip=0"));
  const std::vector<float> master(3000, 1.001f);
  const int slice = updater->add_slice({"w", 0, 3000, DType::kFloat32}, master.data());
  const auto bf16 = codec_of("bf16");
  const Snapshot got = updater->pull(slice, 0, bf16), again = updater->pull(slice, 1, bf16);
  EXPECT_EQ(got.data, again.data);  // encoded once
  EXPECT_EQ(got.bytes, 6000u);
  EXPECT_EQ(updater->pulled_bytes(), 6000u);
  const std::vector<float> gradient(3000, 0.25f);
  updater->apply(slice, {1, 0, 1, gradient.data()});
  updater->apply(slice, {0, 0, 1, gradient.data()});
  std::vector<float> weights(3000);
  updater->read(slice, -1, weights.data());
  const float after_first = 1.001f - 0.25f, pulled = 1;  // 1.001 is 1 in bf16
  EXPECT_EQ(weights, std::vector<float>(3000, after_first - (0.25f + 0.25f * 0.25f * (after_first - pulled))));
}

}  // namespace
}  // namespace paceline::test
