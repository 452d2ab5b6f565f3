#include "tests/gpu/support/exchanges.h"

#include <vector>

#include "src/runtime/backend/cuda_peer/nodes.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {
namespace {

namespace cp = runtime::cuda_peer;

uint32_t seed_of(int from, int to, uint64_t round) {
  return static_cast<uint32_t>(from * 1009 + to * 31) + static_cast<uint32_t>(round) * 100003u;
}

struct PutCase {
  Put how;
  uint64_t bytes, src_shift, dst_shift;
};

const PutCase kCases[] = {
    {Put::thread, 1, 0, 0},
    {Put::thread, 37, 3, 5},
    {Put::warp, 4096, 0, 0},
    {Put::warp, 4099, 4, 8},
    {Put::cta, 1, 7, 0},
    {Put::cta, 16, 0, 1},
    {Put::cta, 255, 8, 0},
    {Put::cta, 65537, 1, 1},
    {Put::cta, 65536, 4, 0},
    {Put::cta, 1 << 20, 0, 0},
    {Put::cta, (2 << 20) + 13, 2, 9},
    {Put::tma, 16, 0, 0},
    {Put::tma, 8192 + 16, 0, 16},
    {Put::tma, 1 << 20, 0, 0},
};
constexpr uint64_t kRoom = (2 << 20) + 256;

void exchange_once(GpuRank& gpu, const Team& team, Channel& channel, const PutCase& put, uint64_t round, char* source,
                   SymBuffer inbox, SignalIds ids, uint64_t* wrong, int32_t* code) {
  const int me = team.rank(), n = team.size();
  for (int step = 1; step <= n; ++step) {  // itself last
    const int to = (me + step) % n;
    launch_fill(gpu.stream, source + put.src_shift, put.bytes, seed_of(me, to, round));
    launch_put_signal(gpu.stream, channel.pod(), put.how, to,
                      inbox.offset + static_cast<uint64_t>(me) * kRoom + put.dst_shift, source + put.src_shift,
                      put.bytes, ids.first);
  }
  for (int from = 0; from < n; ++from) {
    launch_wait(gpu.stream, channel.pod(), from, ids.first, 1, code);
    const char* data = static_cast<const char*>(team.local_ptr(inbox)) + static_cast<uint64_t>(from) * kRoom;
    launch_compare(gpu.stream, data + put.dst_shift, put.bytes, seed_of(from, me, round), wrong);
    EXPECT_EQ(gpu.read(code), 0) << "wait for rank " << from;
    EXPECT_EQ(gpu.read(wrong), 0u) << "bytes from rank " << from << ", put of " << put.bytes << " bytes";
  }
}

}  // namespace

void exchange_patterns(GpuRank& gpu) {
  char* source = gpu.device_array<char>(kRoom);
  auto* wrong = gpu.device_array<uint64_t>(1);
  auto* code = gpu.device_array<int32_t>(1);
  const SymBuffer inbox = gpu.runtime.heap().alloc(kRoom * static_cast<uint64_t>(gpu.size), 256, "inbox");
  const SignalIds ids = gpu.channel.ids(1, Domain::device, "patterns");
  gpu.team.barrier();
  uint64_t round = 0;
  for (const PutCase& put : kCases) {
    exchange_once(gpu, gpu.team, gpu.channel, put, ++round, source, inbox, ids, wrong, code);
    if (testing::Test::HasFailure()) return;
    gpu.team.barrier();  // the inbox is free again
  }
  gpu.runtime.heap().free(inbox);
}

void exchange_stream_puts(GpuRank& gpu) {
  constexpr uint64_t kRows = 33, kRowBytes = 1000, kPitch = 1536, kFlat = (1 << 20) + 5;
  const uint64_t room = kFlat + kRows * kPitch + 256;
  char* source = gpu.device_array<char>(kFlat + kRows * kRowBytes);
  auto* wrong = gpu.device_array<uint64_t>(1);
  const SymBuffer inbox = gpu.runtime.heap().alloc(room * static_cast<uint64_t>(gpu.size), 256, "inbox");
  const SignalIds ids = gpu.channel.ids(1, Domain::stream, "stream puts");
  const TeamPod& pod = gpu.pod().team;
  auto* table = gpu.device_array<cp::TicketAdd>(static_cast<size_t>(gpu.size));
  gpu.team.barrier();
  for (int step = 1; step < gpu.size; ++step) {
    const int to = (gpu.rank + step) % gpu.size;
    launch_fill(gpu.stream, source, kFlat + kRows * kRowBytes, seed_of(gpu.rank, to, 0));
    char* at = static_cast<char*>(gpu.team.peer_ptr(inbox, to)) + static_cast<uint64_t>(gpu.rank) * room;
    EXPECT_TRUE(cp::stream_put(at, source, kFlat, gpu.stream).ok());
    // Rows are adjacent at the source and 1536 bytes apart at the destination.
    EXPECT_TRUE(
        cp::stream_put_2d(at + kFlat + 11, kPitch, source + kFlat, kRowBytes, kRowBytes, kRows, gpu.stream).ok());
    cp::SignalList signals;
    signals.items[0].slot = cp::slot_address(pod, to, ids.first, gpu.rank);
    signals.count = 1;
    EXPECT_TRUE(cp::launch_signal(gpu.stream, signals).ok());
  }
  cp::WaitList waits;
  waits.team = pod;
  for (int from = 0; from < gpu.size; ++from) {
    if (from == gpu.rank) continue;
    cp::WaitItem& item = waits.items[waits.count++];
    item.slot = cp::slot_address(pod, gpu.rank, ids.first, from);
    item.at_least = 1;
    item.peer = static_cast<uint32_t>(from);
    item.id = ids.first;
  }
  EXPECT_TRUE(cp::launch_wait(gpu.stream, waits).ok());
  for (int from = 0; from < gpu.size; ++from) {
    if (from == gpu.rank) continue;
    const char* data = static_cast<const char*>(gpu.team.local_ptr(inbox)) + static_cast<uint64_t>(from) * room;
    launch_compare(gpu.stream, data, kFlat, seed_of(from, gpu.rank, 0), wrong);
    std::vector<uint8_t> rows(kRows * kPitch);
    gpu.fetch(rows.data(), data + kFlat + 11, (kRows - 1) * kPitch + kRowBytes);
    for (uint64_t i = 0; i < kRows * kRowBytes; ++i)
      ASSERT_EQ(rows[i / kRowBytes * kPitch + i % kRowBytes], pattern_byte(seed_of(from, gpu.rank, 0), kFlat + i))
          << "row " << i / kRowBytes << " byte " << i % kRowBytes << " from rank " << from;
  }
  EXPECT_EQ(gpu.read(wrong), 0u);
  std::vector<cp::TicketAdd> adds;
  for (int from = 0; from < gpu.size; ++from)
    if (from != gpu.rank)
      adds.push_back({pod.ticket + uint64_t{ids.first} * pod.sig_stride + static_cast<uint64_t>(from), 1});
  gpu.store(table, adds.data(), adds.size() * sizeof(cp::TicketAdd));
  EXPECT_TRUE(cp::launch_epoch_end(gpu.stream, {nullptr, table, static_cast<uint32_t>(adds.size())}).ok());
  gpu.wait();
  gpu.team.barrier();
  gpu.runtime.heap().free(inbox);
}

void exchange_in_subteams(GpuRank& gpu) {
  const int first[] = {0, 2}, second[] = {3, 1};
  Team a = gpu.team.sub(first, {.name = "even"});
  Team b = gpu.team.sub(second, {.name = "odd"});
  EXPECT_EQ(static_cast<bool>(a), gpu.rank % 2 == 0);
  Team mine = a ? a : b;
  EXPECT_EQ(mine.rank(), gpu.rank == 0 || gpu.rank == 3 ? 0 : 1);
  char* source = gpu.device_array<char>(kRoom);
  auto* wrong = gpu.device_array<uint64_t>(1);
  auto* code = gpu.device_array<int32_t>(1);
  const SymBuffer inbox = gpu.runtime.heap().alloc(kRoom * 2, 256, "inbox");
  Channel& channel = mine.channel(StreamRef::cuda(gpu.stream));
  const SignalIds ids = channel.ids(1, Domain::device, "subteam");
  gpu.team.barrier();
  // The seeds speak of ranks of the team: a mix-up of team and world ranks shows as wrong bytes.
  const uint64_t round = a ? 1000 : 2000;
  exchange_once(gpu, mine, channel, {Put::cta, 65537, 1, 3}, round, source, inbox, ids, wrong, code);
  EXPECT_TRUE(cp::launch_barrier(gpu.stream, mine.pod(), channel.pod().barrier_id).ok());
  gpu.wait();
  gpu.team.barrier();
  gpu.runtime.heap().free(inbox);
}

void replay_graph(GpuRank& gpu) {
  constexpr int kReplays = 1000;
  constexpr uint64_t kBytes = 4096;
  const int to = (gpu.rank + 1) % gpu.size, from = (gpu.rank + gpu.size - 1) % gpu.size;
  const SymBuffer inbox = gpu.runtime.heap().alloc(kBytes, 256, "inbox");
  const SignalIds ids = gpu.channel.ids(2, Domain::device, "graph");
  const TeamPod& pod = gpu.pod().team;
  char* source = gpu.device_array<char>(kBytes);
  auto* wrong = gpu.device_array<uint64_t>(1);
  auto* epoch = gpu.device_array<uint64_t>(1);
  const uint64_t one = 1;
  gpu.store(epoch, &one, sizeof one);
  launch_fill(gpu.stream, source, kBytes, seed_of(gpu.rank, to, 5));
  const uint64_t ticket = uint64_t{pod.sig_stride};
  const cp::TicketAdd adds[] = {{pod.ticket + ids.first * ticket + static_cast<uint64_t>(from), 1},
                                {pod.ticket + (ids.first + 1) * ticket + static_cast<uint64_t>(from), 1}};
  auto* table = gpu.device_array<cp::TicketAdd>(2);
  gpu.store(table, adds, sizeof adds);

  // One call: data and signal by a kernel, the second signal as a post of the epoch, then waits, check, end, barrier.
  const auto enqueue = [&] {
    launch_put_signal(gpu.stream, gpu.pod(), Put::cta, to, inbox.offset, source, kBytes, ids.first);
    cp::SignalList post;
    post.items[0] = {cp::slot_address(pod, to, ids.first + 1, gpu.rank), epoch, 1, 1, 1};
    post.count = 1;
    EXPECT_TRUE(cp::launch_signal(gpu.stream, post).ok());
    cp::WaitList waits;
    waits.team = pod;
    for (uint32_t i = 0; i < 2; ++i)
      waits.items[i] = {cp::slot_address(pod, gpu.rank, ids.first + i, from),
                        epoch,
                        1,
                        1,
                        0,
                        static_cast<uint32_t>(from),
                        ids.first + i};
    waits.count = 2;
    EXPECT_TRUE(cp::launch_wait(gpu.stream, waits).ok());
    launch_compare(gpu.stream, gpu.team.local_ptr(inbox), kBytes, seed_of(from, gpu.rank, 5), wrong);
    EXPECT_TRUE(cp::launch_epoch_end(gpu.stream, {epoch, table, 2}).ok());
    EXPECT_TRUE(cp::launch_barrier(gpu.stream, pod, gpu.pod().barrier_id).ok());
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  enqueue();
  if (gpu.state().stream_caps().write_value) {
    // Its value would be frozen: refused, and the capture goes on as if it had not been called.
    const base::Status refused =
        cp::stream_write(cp::slot_address(pod, to, ids.first, gpu.rank), 1, gpu.state().stream_caps(), gpu.stream);
    EXPECT_EQ(refused.code(), Errc::capture) << refused.message();
  }
  EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  size_t nodes = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 6u);
  EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  EXPECT_CUDA(cudaGraphUpload(replay, gpu.stream));
  EXPECT_CUDA(cudaStreamSynchronize(gpu.stream));
  gpu.team.barrier();
  for (int i = 1; i <= kReplays; ++i) {
    EXPECT_CUDA(cudaGraphLaunch(replay, gpu.stream));
    // A full queue blocks the thread that launches, and with it other ranks of the same context.
    if (i % 50 == 0) gpu.wait();
  }
  EXPECT_EQ(gpu.read(epoch), uint64_t{kReplays} + 1);
  EXPECT_EQ(gpu.read(wrong), 0u);
  enqueue();  // eager calls continue where the replays ended
  gpu.wait();
  EXPECT_EQ(gpu.read(epoch), uint64_t{kReplays} + 2);
  EXPECT_EQ(gpu.read(wrong), 0u);
  gpu.team.barrier();
  EXPECT_CUDA(cudaGraphExecDestroy(replay));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  gpu.team.barrier();
  gpu.runtime.heap().free(inbox);
}

}  // namespace overlace::test
