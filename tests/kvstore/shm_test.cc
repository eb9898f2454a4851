// What is special about shared memory; what every transport promises is in conformance/transports_test.cc.

#include <gtest/gtest.h>
#include <paceline/detail/host_memory.h>
#include <paceline/detail/shared_heap.h>
#include <paceline/mutex.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "transport/shm_sessions.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using shm::Control;

constexpr std::size_t kBytes = std::size_t{1} << 20;

// A frame of its own memory, wherever large arrays lie now.
Frame filled(char value, std::size_t bytes = kBytes) {
  const std::shared_ptr<std::byte[]> memory = detail::allocate_host(bytes);
  std::memset(memory.get(), value, bytes);
  return {memory, memory.get(), bytes};
}

bool is_filled(const Frame& frame, char value) {
  for (std::size_t i = 0; i < frame.size; ++i)
    if (frame.data[i] != static_cast<std::byte>(value)) return false;
  return true;
}

// How much memory of that kind, of whichever process, this one maps.
std::size_t mapped_heaps() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:paceline") != std::string::npos;
  return count;
}

// Does it lie in memory that another process offers?
bool is_shared(const Frame& frame) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    const auto at = reinterpret_cast<std::uintptr_t>(frame.data);
    if (begin <= at && at < end) return line.find("memfd:paceline") != std::string::npos;
  }
  return false;
}

class Inbox {
 public:
  Transport::Handler handler() {
    return [this](LinkId link, Packet packet) {
      const Lock lock(mutex_);
      link_ = link;
      packets_.push_back(std::move(packet));
      changed_.notify_all();
    };
  }
  // Empty where nothing came in time.
  Packet next(std::chrono::milliseconds limit = 20s) {
    const Lock lock(mutex_);
    if (!changed_.wait_for(mutex_, limit, [this] { return !packets_.empty(); })) return {};
    Packet packet = std::move(packets_.front());
    packets_.erase(packets_.begin());
    return packet;
  }
  LinkId link() {
    const Lock lock(mutex_);
    return link_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  LinkId link_ = 0;
  std::vector<Packet> packets_;
};

bool within_20_seconds(const std::function<bool()>& condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
  return condition();
}

TEST(SharedHeap, JoinsWhatIsReleasedAndKnowsItsOwn) {
  std::string why;
  detail::SharedHeap* heap = detail::SharedHeap::enable(why);
  ASSERT_TRUE(heap) << why;
  EXPECT_EQ(heap, detail::SharedHeap::enabled());
  constexpr std::size_t kBlock = std::size_t{64} << 20;  // larger than what other uses left free
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(heap->allocate(kBlock));
  void* const first = blocks[0];
  EXPECT_TRUE(heap->contains(first, kBlock));
  EXPECT_FALSE(heap->contains(&why, 1));
  EXPECT_FALSE(heap->contains(first, heap->bytes() + 1));
  for (const int i : {1, 3, 0, 2}) heap->release(blocks[static_cast<std::size_t>(i)], kBlock);
  EXPECT_EQ(heap->allocate(4 * kBlock), first);
  heap->release(first, 4 * kBlock);
  EXPECT_EQ(heap->allocate(heap->bytes() + 1), nullptr);
  std::string reason;
  EXPECT_EQ(detail::SharedView::open(1 << 30, 3, 4096, reason), nullptr);
  EXPECT_NE(reason, "");
}

// How many of the pages that lie whole in [begin, end) are there.
std::size_t present(const std::byte* begin, const std::byte* end) {
  const auto first = (reinterpret_cast<std::uintptr_t>(begin) + 4095) / 4096 * 4096;
  std::vector<unsigned char> pages((reinterpret_cast<std::uintptr_t>(end) - first) / 4096);
  if (mincore(reinterpret_cast<void*>(first), 4096 * pages.size(), pages.data()) != 0) return 0;
  return static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

// In a process of its own (tests/exceptions.toml): others have the heap already.
TEST(SharedHeap, TakesThePlaceOfWhatThePoolHasKept) {
  const bool had_one = detail::SharedHeap::enabled();
  std::shared_ptr<std::byte[]> used = detail::allocate_host(kBytes);
  for (int i = 0; i < 3; ++i) detail::allocate_host(kBytes);
  std::string why;
  const detail::SharedHeap* const heap = detail::SharedHeap::enable(why);
  ASSERT_TRUE(heap) << why;
  EXPECT_TRUE(heap->contains(detail::allocate_host(kBytes).get(), kBytes)) << "a block that was kept before";
  EXPECT_EQ(heap->contains(used.get(), kBytes), had_one);
  used.reset();
  EXPECT_TRUE(heap->contains(detail::allocate_host(kBytes).get(), kBytes)) << "a block that was in use before";
}

TEST(SharedHeap, PagesAreLargeOnceAllOfThemIsHandedOut) {
  std::string why;
  detail::SharedHeap* heap = detail::SharedHeap::enable(why);
  ASSERT_TRUE(heap) << why;
  constexpr std::size_t kLarge = std::size_t{2} << 20, kBlock = 32 * kLarge + kLarge / 2;
  auto* const block = static_cast<std::byte*>(heap->allocate(kBlock));
  std::byte* const end = block + kBlock;
  std::byte* const shared = end - heap->offset_of(end) % kLarge;  // a large page with what comes after
  ASSERT_NE(shared, end);
  const bool supported = present(shared - kLarge, shared) == kLarge / 4096;
  std::memset(shared, 7, 4096);
  EXPECT_LE(present(shared, end), 1U) << "pages that nobody asked for";
  auto* const next = static_cast<std::byte*>(heap->allocate(kBlock));
  ASSERT_EQ(next, end);
  EXPECT_EQ(std::count(shared, shared + 4096, std::byte{7}), 4096) << "what was there is lost";
  if (supported) {
    EXPECT_EQ(present(shared, shared + kLarge), kLarge / 4096);
  }
  heap->release(block, kBlock);
  EXPECT_EQ(present(block + kLarge, shared), 0U) << "released, but still there";
  heap->release(next, kBlock);
  if (!supported) GTEST_SKIP() << "this system cannot join pages";
}

TEST(Shm, LargeFramesAreReadWhereTheyLie) {
  Inbox inbox;
  auto server = make_transport(Spec::parse("shm")), client = make_transport(Spec::parse("shm"));
  server->on_receive(inbox.handler());
  const LinkId link = client->connect(server->bind("127.0.0.1:0"));
  std::weak_ptr<const void> watch;
  const bool shared = within_20_seconds([&] {
    Frame sent = filled('a');
    const std::byte* data = sent.data;
    watch = sent.owner;
    client->send(link, {Frame::of("head"), std::move(sent)});
    const Packet packet = inbox.next();
    EXPECT_EQ(packet.size(), 2u);
    EXPECT_TRUE(is_filled(packet[1], 'a'));
    return packet.size() == 2 && packet[1].data == data;
  });
  EXPECT_TRUE(shared);
  EXPECT_TRUE(within_20_seconds([&] { return watch.expired(); }));
  const Frame large = filled('b'), small = filled('c', 1024);
  const std::vector<std::byte> foreign(kBytes);
  EXPECT_TRUE(client->reads_in_place(link, large.data, large.size));
  EXPECT_FALSE(client->reads_in_place(link, small.data, small.size));
  EXPECT_FALSE(client->reads_in_place(link, foreign.data(), foreign.size()));
  EXPECT_FALSE(client->reads_in_place(link + 1000, large.data, large.size));
}

TEST(Shm, PeersOfAnotherHostAreReachedByTcp) {
  static bool told = false;  // a process says it once
  testing::internal::CaptureStderr();
  Inbox inbox;
  auto server = make_transport(Spec::parse("shm")), client = make_transport(Spec::parse("shm:host=elsewhere"));
  server->on_receive(inbox.handler());
  const LinkId link = client->connect(server->bind("127.0.0.1:0"));
  for (int i = 0; i < 10; ++i) {
    const Frame sent = filled('b');
    client->send(link, {sent});
    const Packet packet = inbox.next();
    ASSERT_EQ(packet.size(), 1u);
    EXPECT_TRUE(is_filled(packet[0], 'b'));
    EXPECT_NE(packet[0].data, sent.data);
    std::this_thread::sleep_for(5ms);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const char* const line = "is another host, user or container; such peers are reached by tcp";
  EXPECT_TRUE(std::exchange(told, true) || log.find(line) != std::string::npos) << log;
}

// The other process reads ours in place, never lets go, and is killed. Its memory is let go too.
TEST(Shm, WhatAKilledProcessHeldIsLetGo) {
  if (detail::SharedHeap::enabled())
    GTEST_SKIP() << "a test before it in this process has made the heap that fork shares";
  int address_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char address[64] = {};
    if (read(address_pipe[0], address, sizeof(address) - 1) <= 0) _exit(1);
    auto client = make_transport(Spec::parse("shm"));
    Inbox inbox;
    client->on_receive(inbox.handler());
    const LinkId link = client->connect(address);
    for (;;) {
      client->send(link, {filled('c')});
      const Packet answer = inbox.next();
      if (answer.size() != 1) _exit(2);
      if (is_filled(answer[0], 's') && is_shared(answer[0])) raise(SIGKILL);
    }
  }
  Inbox inbox;
  auto server = make_transport(Spec::parse("shm"));
  server->on_receive(inbox.handler());
  const std::string address = server->bind("127.0.0.1:0");
  ASSERT_EQ(write(address_pipe[1], address.c_str(), address.size()), static_cast<ssize_t>(address.size()));
  std::weak_ptr<const void> last;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const Packet packet = inbox.next(10ms);
    if (packet.empty()) continue;
    EXPECT_TRUE(is_filled(packet[0], 'c'));
    Frame answer = filled(is_shared(packet[0]) ? 's' : 't');
    last = answer.owner;
    server->send(inbox.link(), {std::move(answer)});
  }
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
  EXPECT_TRUE(within_20_seconds([&] {
    server->send(inbox.link(), {Frame::of("as the scheduler does, which sends nothing large")});
    return last.expired() && mapped_heaps() == 1;  // its own
  }));
  close(address_pipe[0]);
  close(address_pipe[1]);
}

class Rejections final : public TransportObserver {
 public:
  void on_send(LinkId, const Packet&) override {}
  void on_receive(LinkId, const Packet&) override {}
  void on_reject(const std::string&) override { ++count; }
  std::atomic<int> count = 0;
};

Control control_of(Control::Kind kind, std::uint32_t round) {
  Control control;
  control.set_kind(kind);
  control.set_session(7);
  control.set_round(round);
  return control;
}

Control frames_of(std::uint64_t number, std::uint64_t offset, std::uint64_t bytes) {
  Control control = control_of(Control::FRAMES, 2);
  control.add_packets(number);
  shm::Piece* piece = control.add_pieces();
  piece->set_shared(true);
  piece->set_offset(offset);
  piece->set_bytes(bytes);
  return control;
}

TEST(Shm, FramesOutsideOfThePeersMemoryAreTurnedAway) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  Inbox inbox, answers;
  auto server = make_transport(Spec::parse("shm:max_frame_bytes=100000000"));
  const auto rejections = std::make_shared<Rejections>();
  server->add_observer(rejections);
  server->on_receive(inbox.handler());
  auto stranger = make_transport(Spec::parse("tcp"));
  stranger->on_receive(answers.handler());
  const std::string address = server->bind("127.0.0.1:0");
  const LinkId link = stranger->connect(address);
  const auto answer_of = [&](const Control& control) {
    stranger->send(link, shm::packet_of(control));
    const Packet packet = answers.next();
    Control answer;
    EXPECT_TRUE(shm::is_control(packet));
    if (shm::is_control(packet))
      answer.ParseFromArray(packet[0].data + shm::kMagicBytes, static_cast<int>(packet[0].size - shm::kMagicBytes));
    return answer;
  };

  EXPECT_EQ(answer_of(frames_of(1, 0, 10)).kind(), Control::STRANGER);
  const Control first = answer_of(control_of(Control::HELLO, 1));
  EXPECT_EQ(first.kind(), Control::ANSWER);
  EXPECT_FALSE(first.opened());
  Control hello = control_of(Control::HELLO, 2);
  *hello.mutable_memory() = first.memory();
  auto liar = make_transport(Spec::parse("tcp"));
  for (const auto& [descriptor, bytes] : {std::pair{0, first.memory().bytes()}, {-1, std::uint64_t{1}}}) {
    Control wrong = hello;
    wrong.set_session(random());
    wrong.mutable_memory()->set_process(getppid());
    wrong.mutable_memory()->set_descriptor(descriptor);
    wrong.mutable_memory()->set_bytes(bytes);
    liar->send(liar->connect(address), shm::packet_of(wrong));
  }
  EXPECT_TRUE(answer_of(hello).opened());

  const std::uint64_t size = first.memory().bytes();
  std::vector<Packet> bad;
  bad.push_back(shm::packet_of(frames_of(1, size, 1)));
  bad.push_back(shm::packet_of(frames_of(2, size - 10, 11)));
  bad.push_back(shm::packet_of(frames_of(3, ~std::uint64_t{0}, 10)));
  bad.push_back(shm::packet_of(frames_of(4, 10, ~std::uint64_t{0})));
  bad.push_back(shm::packet_of(frames_of(5, 0, 100000001)));
  Control announces_more = frames_of(6, 0, 10);
  announces_more.add_pieces()->set_bytes(5);
  bad.push_back(shm::packet_of(announces_more));
  bad.push_back({shm::packet_of(frames_of(7, 0, 10))[0], Frame::of("one too many")});
  Control without_number = frames_of(8, 0, 10);
  without_number.clear_packets();
  bad.push_back(shm::packet_of(without_number));
  bad.push_back({Frame::of(std::string(shm::kMagic, shm::kMagicBytes) + "\xff\xff\xff")});
  for (const Packet& packet : bad) stranger->send(link, packet);
  EXPECT_TRUE(within_20_seconds([&] { return rejections->count == static_cast<int>(bad.size()); }));

  // Anything at all leaves it standing.
  for (int i = 0; i < 300; ++i) {
    std::string bytes = frames_of(1000, 0, 10).SerializeAsString();
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    stranger->send(link, {Frame::of(std::string(shm::kMagic, shm::kMagicBytes) + bytes)});
  }
  stranger->send(link, {Frame::of("after all of it")});
  for (Packet packet = inbox.next();; packet = inbox.next()) {
    ASSERT_FALSE(packet.empty());
    if (packet.size() == 1 && packet[0].size == 15) break;
  }
}

}  // namespace
}  // namespace paceline
