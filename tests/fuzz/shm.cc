// What a peer on the same host says about memory that both can read. The peer of the fuzzer speaks to a transport `shm`
// and names memory of this process, of none, or of another. Afterwards a packet must still arrive. `shm` is over tcp
// for one input in 64, and otherwise over inproc, which takes a twentieth of the time.

#include <paceline/detail/shared_heap.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "fuzz.h"
#include "transport/shm_sessions.h"

namespace paceline::fuzz {
namespace {

using shm::Control;

constexpr std::size_t kMostFrame = 65536;
constexpr const char* kLast = "the last packet of the input";

// Both ends. They serve many inputs, because making them takes longer than a thousand inputs.
class Ends {
 public:
  Ends(const std::string& inner, const std::string& address)
      : receiver_(shm::make_over(make_transport(Spec::parse(inner)),
                                 Options({{"host", "here"}, {"max_frame_bytes", std::to_string(kMostFrame)}}))),
        peer_(make_transport(Spec::parse(inner))) {
    receiver_->on_receive([this](LinkId, const Packet& packet) { on_packet(packet); });
    peer_->on_receive([](LinkId, const Packet&) {});
    address_ = receiver_->bind(address);
  }

  static Ends& of_this_process(bool tcp) {
    constexpr int kMostLinks = 4096;  // inproc keeps what it knows of a link until the transport is gone
    static Ends& over_tcp = *new Ends(str("tcp:max_frame_bytes=", kMostFrame), "127.0.0.1:0");
    static auto* over_inproc = new std::unique_ptr<Ends>;
    static int links = 0;
    if (tcp) return over_tcp;
    if (links++ % kMostLinks == 0) {
      over_inproc->reset();
      *over_inproc = std::make_unique<Ends>("inproc", "the fuzzed end");
    }
    return **over_inproc;
  }

  LinkId connect() { return peer_->connect(address_); }
  void send(LinkId link, Packet packet) { peer_->send(link, std::move(packet)); }
  // Until all that was sent is handled. Throws the Finding of a packet that arrived.
  void wait(LinkId link) {
    std::unique_lock lock(mutex_);
    over_ = false;
    peer_->send(link, {Frame::of(kLast)});
    arrived_.wait(lock, [this] { return over_; });
    if (const auto finding = std::exchange(finding_, nullptr)) std::rethrow_exception(finding);
  }
  void close(LinkId link) { peer_->close(link); }

 private:
  void on_packet(const Packet& packet) {
    const std::lock_guard lock(mutex_);
    try {
      expect(!packet.empty(), "a packet without frames");
      for (const Frame& frame : packet) {
        expect(frame.size <= kMostFrame, "a frame of ", frame.size, " bytes");
        read(frame);
      }
    } catch (...) {
      finding_ = std::current_exception();
    }
    const Frame& first = packet.front();
    over_ = over_ || (first.size == std::strlen(kLast) && std::memcmp(first.data, kLast, first.size) == 0);
    arrived_.notify_all();
  }
  // Every byte must be readable.
  static void read(const Frame& frame) {
    static std::atomic<unsigned> sum = 0;
    for (std::size_t i = 0; i < frame.size; ++i) sum += std::to_integer<unsigned>(frame.data[i]);
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  bool over_ = false;
  std::exception_ptr finding_;
  std::string address_;
  std::unique_ptr<Transport> receiver_, peer_;
};

std::uint64_t number_near(std::uint64_t real, std::uint8_t choice) {
  switch (choice % 8) {
    case 0: return real;
    case 1: return real + 1;
    case 2: return real - 1;
    case 3: return 0;
    case 4: return ~std::uint64_t{0};
    case 5: return real - kMostFrame;
    case 6: return kMostFrame + 1;
    default: return choice;
  }
}

Control cut_control(Cutter& cut, std::uint64_t first_session, const detail::SharedHeap& heap) {
  Control control;
  control.set_kind(static_cast<Control::Kind>(cut.number<std::uint8_t>() % 8));
  control.set_session(first_session + cut.number<std::uint8_t>() % 4);
  control.set_round(cut.number<std::uint8_t>());
  const auto choice = cut.number<std::uint8_t>();
  control.set_opened(choice & 1);
  if (choice & 2) {
    shm::Memory& memory = *control.mutable_memory();
    memory.set_host(choice & 4 ? "elsewhere" : "here");
    const auto process = cut.number<std::int8_t>();
    memory.set_process(process == 0 ? getpid() : process);
    const auto descriptor = cut.number<std::int8_t>();
    memory.set_descriptor(descriptor == 0 ? heap.descriptor() : descriptor);
    memory.set_bytes(number_near(heap.bytes(), cut.number<std::uint8_t>()));
  }
  for (int left = choice >> 3 & 3; left > 0; --left) control.add_packets(cut.number<std::uint8_t>() % 4);
  for (int left = choice >> 5 & 3; left > 0; --left) {
    shm::Piece& piece = *control.add_pieces();
    const auto form = cut.number<std::uint8_t>();
    piece.set_shared(form & 1);
    piece.set_offset(number_near(heap.bytes(), form >> 1));
    piece.set_bytes(number_near(heap.bytes(), cut.number<std::uint8_t>()));
  }
  return control;
}

}  // namespace

// Packets: a control message, or bytes in place of it, and then frames.
void shm(std::string_view input) {
  constexpr int kMostPackets = 12;
  Ends& ends = Ends::of_this_process(input.size() % 64 == 0);
  const detail::SharedHeap* const heap = detail::SharedHeap::enabled();
  if (!heap) return;  // then the transport reads no memory of peers
  static std::uint64_t inputs = 0;
  const std::uint64_t session = ++inputs << 8;
  const LinkId link = ends.connect();
  Cutter cut(input);
  for (int left = kMostPackets; left > 0 && !cut.empty(); --left) {
    const auto choice = cut.number<std::uint8_t>();
    Packet packet;
    if (choice & 1)
      packet = {Frame::of(std::string(shm::kMagic, shm::kMagicBytes) + std::string(cut.text()))};
    else
      packet = shm::packet_of(cut_control(cut, session, *heap));
    for (int frames = choice >> 1 & 3; frames > 0; --frames) packet.push_back(Frame::of(std::string(cut.text())));
    ends.send(link, std::move(packet));
  }
  ends.wait(link);
  ends.close(link);
}

}  // namespace paceline::fuzz
