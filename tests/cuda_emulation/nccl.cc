// NCCL over the emulated devices. A rank's part of a sum is read in that rank's stream, and the root adds the parts up
// in its own, from the rank after it around: another order than that of the devices. Nothing happens before the group
// ends.
#include "call.h"

#include <cstring>
#include <utility>
#include <vector>

using cuda_emulation::Clock;
using cuda_emulation::Point;
using cuda_emulation::Reach;

extern "C" {

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
};
struct ncclComm {
  std::size_t rank;
  int device;
  std::vector<ncclComm*>* all;
  cuda_emulation::Stream* stuck = nullptr;  // what is never done before the communicator is aborted waits for this
  ncclResult_t error = ncclSuccess;
};
typedef ncclComm* ncclComm_t;

// For tests: `times` collectives from now on succeed, the next fails with this at once, or never ends and reports it
// later. The number of those that were issued.
void emulated_nccl_fail(int times, ncclResult_t result, bool later);
int emulated_nccl_issued();
}

namespace {

struct Collective {
  const void* send;
  void* receive;
  std::size_t count, width;
  std::size_t root;
  bool sums;
  ncclComm_t comm;
  cuda_emulation::Stream* stream;
};

thread_local int depth = 0;
thread_local std::vector<Collective> group;
// The lock of the emulation holds for these.
int issued = 0, good = -1;
ncclResult_t failure = ncclSuccess;
bool fails_later = false;

template <class T>
void add(const std::vector<std::vector<char>>& parts, std::size_t root, void* to) {
  std::vector<T> sum(parts[root].size() / sizeof(T)), part(sum.size());
  for (std::size_t i = 1; i <= parts.size(); ++i) {
    std::memcpy(part.data(), parts[(root + i) % parts.size()].data(), parts[root].size());
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] = i == 1 ? part[k] : sum[k] + part[k];
  }
  std::memcpy(to, sum.data(), parts[root].size());
}

// All ranks' calls of one collective.
ncclResult_t issue(cuda_emulation::Call& call, std::vector<Collective> ranks) {
  const Collective first = ranks.front();
  for (const Collective& each : ranks)
    if (each.count != first.count || each.width != first.width || each.root != first.root || each.sums != first.sums ||
        each.stream->device != each.comm->device)
      return ncclInvalidUsage;
  ++issued;
  if (good >= 0 && good-- == 0) {
    if (!fails_later) return failure;
    for (const Collective& each : ranks) {
      each.comm->error = failure;
      each.comm->stuck = &call.scheduler.create_stream(each.comm->device);
      each.stream->clock.join(call.scheduler.next(*each.comm->stuck));
    }
  }
  const std::size_t bytes = first.count * first.width;
  const auto parts = std::make_shared<std::vector<std::vector<char>>>(ranks.size());
  Clock sent;
  for (const Collective& each : ranks) {
    if (!first.sums && each.comm->rank != first.root) continue;
    call.scheduler.issue(*each.stream, {"ncclSend", each.comm->device, Reach::kEverywhere,
                                        [parts, rank = each.comm->rank, from = each.send, bytes] {
                                          const auto* const first_byte = static_cast<const char*>(from);
                                          (*parts)[rank].assign(first_byte, first_byte + bytes);
                                        }});
    sent.join(each.stream->clock);
  }
  for (const Collective& each : ranks) {
    if (first.sums && each.comm->rank != first.root) continue;
    each.stream->clock.join(sent);
    call.scheduler.issue(*each.stream, {"ncclReceive", each.comm->device, Reach::kEverywhere, [=] {
                                          if (!each.sums)
                                            std::memcpy(each.receive, (*parts)[each.root].data(), bytes);
                                          else if (each.width == sizeof(float))
                                            add<float>(*parts, each.root, each.receive);
                                          else
                                            add<double>(*parts, each.root, each.receive);
                                        }});
  }
  return ncclSuccess;
}

ncclResult_t join(const void* send, void* receive, std::size_t count, int type, int root, bool sums, ncclComm_t comm,
                  void* stream) {
  if (depth == 0 || (type != 7 && type != 8) || !send || !receive || !stream) return ncclInvalidArgument;
  group.push_back({send, receive, count, type == 8 ? sizeof(double) : sizeof(float), static_cast<std::size_t>(root),
                   sums, comm, static_cast<cuda_emulation::Stream*>(stream)});
  return ncclSuccess;
}

}  // namespace

extern "C" {

void emulated_nccl_fail(int times, ncclResult_t result, bool later) {
  cuda_emulation::Call call;
  good = times;
  failure = result;
  fails_later = later;
}

int emulated_nccl_issued() {
  cuda_emulation::Call call;
  return issued;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 22105;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "an error of the emulation";
  }
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  cuda_emulation::Call call;
  auto* const all = new std::vector<ncclComm*>;
  for (int rank = 0; rank < count; ++rank) {
    for (int other = 0; other < rank; ++other)
      if (devices[rank] == devices[other]) return ncclInvalidUsage;
    if (devices[rank] >= call.scheduler.devices()) return ncclInvalidArgument;
    all->push_back(comms[rank] = new ncclComm{static_cast<std::size_t>(rank), devices[rank], all});
  }
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  auto* const all = comm->all;
  std::erase(*all, comm);
  if (all->empty()) delete all;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    cuda_emulation::Call call;
    if (comm->stuck) call.scheduler.issue(*comm->stuck, {"ncclAbort", comm->device, Reach::kHost, [] {}});
  }
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  cuda_emulation::Call call;
  *error = comm->error;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  std::vector<Collective> calls = std::exchange(group, {});
  cuda_emulation::Call call;
  while (!calls.empty()) {
    // The first of each rank belong together.
    std::vector<Collective> ranks(calls.front().comm->all->size());
    for (Collective& rank : ranks) rank.comm = nullptr;
    std::vector<Collective> others;
    for (const Collective& each : calls) {
      Collective& mine = ranks[each.comm->rank];
      if (mine.comm)
        others.push_back(each);
      else
        mine = each;
    }
    for (const Collective& rank : ranks)
      if (!rank.comm) return ncclInvalidUsage;
    if (const ncclResult_t result = issue(call, std::move(ranks)); result != ncclSuccess) return result;
    calls = std::move(others);
  }
  return ncclSuccess;
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, int type, int operation, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return operation == 0 ? join(send, receive, count, type, root, true, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return join(send, receive, count, type, root, false, comm, stream);
}
}
