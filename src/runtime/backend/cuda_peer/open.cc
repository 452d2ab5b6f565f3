// How a rank opens: device, reach, heap, shared words, self-test, watcher. Each step ends with an agreement, so that
// all ranks leave at the same step with the same cause.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>

#include "src/base/env.h"
#include "src/base/log.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/runtime/backend/cuda_peer/self_test.h"
#include "src/runtime/backend/cuda_peer/state.h"

namespace overlace::runtime {

base::Result<std::unique_ptr<BackendState>> open_cuda_peer(const OpenContext& context) {
  base::Result<std::unique_ptr<cuda_peer::CudaPeerState>> state = cuda_peer::CudaPeerState::open(context);
  if (!state.ok()) return state.status();
  return std::unique_ptr<BackendState>(std::move(*state));
}

namespace cuda_peer {
namespace {

// In the control block's backend part:
constexpr uint64_t kClaimOffset = 4096, kPipelineOffset = kClaimOffset + 256;
enum HeapMode : uint32_t { kAuto, kVmm, kIpc };

HeapMode wanted_heap() {
  const std::string& text = base::env().heap;
  return text == "vmm" ? kVmm : text == "ipc" ? kIpc : kAuto;
}

}  // namespace

CudaPeerState::CudaPeerState(const OpenContext& context)
    : control_(context.control),
      names_(context.names),
      options_(context.options),
      rank_(context.control.rank()),
      world_(context.control.size()) {}

base::Result<std::unique_ptr<CudaPeerState>> CudaPeerState::open(const OpenContext& context) {
  std::unique_ptr<CudaPeerState> state(new CudaPeerState(context));
  const auto agree = [&](const base::Status& mine, const char* what) {
    return agree_on_status(context.control, mine, context.options.timeout_ms, what);
  };
  OVERLACE_TRY(agree(state->open_device(context), "open, device"));
  OVERLACE_TRY(state->find_local(context));
  OVERLACE_TRY(state->open_heap(context));
  OVERLACE_TRY(agree(state->open_memory(), "open, memory"));
  OVERLACE_TRY(agree(state->check_peers(), "open, layout of the peers"));
  OVERLACE_TRY(state->prove_pairs());
  state->watcher_ = std::thread([raw = state.get()] { raw->watch(); });
  return state;
}

base::Status CudaPeerState::open_device(const OpenContext& context) {
  const int env_local = base::env().local_rank;
  const int local_rank = context.control.in_process() || env_local < 0 ? rank_ : env_local;
  base::Result<int> device = choose_device(options_.device, local_rank);
  if (!device.ok()) return device.status();
  device_ = *device;
  const DeviceGuard guard(device_);
  OVERLACE_TRY(cuda_status(cudaFree(nullptr), "cudaFree (device context)"));
  stream_caps_ = query_stream_caps(device_);
  if (base::env().cuda_device_max_connections == 1)
    base::warn_once("runtime", "CUDA_DEVICE_MAX_CONNECTIONS is 1; streams cannot wait for words, kernels do it");
  return {};
}

/// Who is on this host, has a device of its own and reaches all the others.
base::Status CudaPeerState::find_local(const OpenContext& context) {
  const auto agree = [&](const base::Status& mine) {
    return agree_on_status(control_, mine, options_.timeout_ms, "open, devices");
  };
  base::Result<DeviceFacts> mine = query_device(device_);
  OVERLACE_TRY(agree(mine.status()));
  base::Result<std::vector<DeviceFacts>> facts = exchange_value(control_, *mine, options_.timeout_ms, "open, devices");
  OVERLACE_TRY(agree(facts.status()));
  facts_ = std::move(*facts);
  OVERLACE_TRY(check_sharing(facts_));
  sharing_ = find_sharing(facts_);
  // Ranks that are threads on one device share its SMs; processes take turns.
  const auto sharers = std::count_if(facts_.begin(), facts_.end(), [&](const DeviceFacts& f) {
    const DeviceFacts& own = facts_[static_cast<size_t>(rank_)];
    return f.pid == own.pid && std::equal(std::begin(f.uuid), std::end(f.uuid), std::begin(own.uuid));
  });
  sm_room_ = std::max(1, count_sms(device_) / static_cast<int>(sharers));

  struct Vote {
    bool access = true, atomics = true;
  } vote;
  const uint64_t host = context.hellos[static_cast<size_t>(rank_)].host_id;
  const std::vector<PeerAccess> access = query_access(device_, facts_);
  for (int peer = 0; peer < world_; ++peer) {
    if (context.hellos[static_cast<size_t>(peer)].host_id != host) continue;
    local_.push_back(peer);
    if (vote.access && !access[static_cast<size_t>(peer)].access)
      base::log(base::LogLevel::warn, "runtime",
                "no direct access from the device of rank {} to that of rank {}; all "
                "ranks of this host use a network engine",
                rank_, peer);
    vote.access &= access[static_cast<size_t>(peer)].access;
    vote.atomics &= access[static_cast<size_t>(peer)].atomics;
  }
  base::Result<std::vector<Vote>> votes = exchange_value(control_, vote, options_.timeout_ms, "open, reach");
  OVERLACE_TRY(agree(votes.status()));
  atomics_ = true;
  std::map<uint64_t, bool> reaches_all;  // by host
  for (int peer = 0; peer < world_; ++peer) {
    const auto [host_of_peer, is_first] = reaches_all.emplace(context.hellos[static_cast<size_t>(peer)].host_id, true);
    host_of_peer->second &= (*votes)[static_cast<size_t>(peer)].access;
  }
  std::map<uint64_t, int> first_of;
  for (int peer = 0; peer < world_; ++peer) {
    const uint64_t id = context.hellos[static_cast<size_t>(peer)].host_id;
    groups_.push_back(reaches_all.at(id) ? first_of.emplace(id, peer).first->second : peer);
  }
  std::erase_if(local_, [&](int peer) { return groups_[static_cast<size_t>(peer)] != group(rank_); });
  for (int peer : local_) atomics_ &= (*votes)[static_cast<size_t>(peer)].atomics;
  return {};
}

base::Status CudaPeerState::open_heap(const OpenContext& context) {
  layout_ = runtime_layout(static_cast<uint32_t>(world_), options_.num_signal_ids, kSlotPitchCuda, options_.heap_bytes,
                           kHeapGranule);
  base::Result<std::vector<uint32_t>> wanted =
      exchange_value(control_, static_cast<uint32_t>(wanted_heap()), options_.timeout_ms, "open, heap");
  if (!wanted.ok()) return wanted.status();
  const bool has_vmm = std::all_of(facts_.begin(), facts_.end(), [](const DeviceFacts& f) { return f.vmm != 0; });
  for (size_t r = 1; r < wanted->size(); ++r)
    if ((*wanted)[r] != (*wanted)[0])
      return base::error(Errc::layout_mismatch, "OVERLACE_HEAP differs between ranks 0 and {}; wanted one value", r);
  const uint32_t mode = (*wanted)[0];
  if (mode == kVmm && !has_vmm)
    return base::error(Errc::not_supported,
                       "OVERLACE_HEAP=vmm: a device or its driver exports no allocations as descriptors; wanted ipc");
  const uint64_t limit = align_up(layout_.user.offset + options_.max_heap_bytes, kHeapGranule);
  const HeapRequest request{context.control, facts_, local_, device_, layout_.total_bytes, options_.timeout_ms, limit};
  const auto agreed = [&](base::Result<std::unique_ptr<DeviceHeap>> made) -> base::Status {
    OVERLACE_TRY(agree_on_status(control_, made.status(), options_.timeout_ms, "open, heap"));
    heap_ = std::move(*made);
    return {};
  };
  if (mode == kIpc || !has_vmm) return agreed(open_ipc_heap(request));
  base::Status status = agreed(open_vmm_heap(request));
  if (status.ok() || mode == kVmm) return status;
  // Ranks may have failed for different reasons: all take the other heap, or none.
  const uint32_t mine = status.code() == Errc::cuda ? 1 : 0;
  if (mine == 0) {  // none, whatever the others say: behind a deadline there is no time left to wait for them
    (void)control_.post(control_.all_ranks(), std::as_bytes(std::span(&mine, 1)));
    return status;
  }
  base::Result<std::vector<uint32_t>> all = exchange_value(control_, mine, options_.timeout_ms, "open, heap");
  if (!all.ok() || std::find(all->begin(), all->end(), 0u) != all->end()) return status;
  base::log(base::LogLevel::warn, "runtime", "{}; the heap uses cudaIpc handles instead", status.message());
  return agreed(open_ipc_heap(request));
}

base::Status CudaPeerState::grow_heap(uint64_t bytes) {
  const uint64_t user = align_up(bytes, kHeapGranule);
  OVERLACE_TRY(heap_->grow({control_, facts_, local_, device_, layout_.user.offset + user, options_.timeout_ms}));
  layout_.user.bytes = user;
  return {};
}

base::Status CudaPeerState::open_memory() {
  const DeviceGuard guard(device_);
  base::Result<Pinned<HostBlock>> host = allocate_pinned<HostBlock>(1);
  if (!host.ok()) return host.status();
  host_ = std::move(*host);
  OVERLACE_TRY(cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  OVERLACE_TRY(
      cuda_status(cudaStreamCreateWithFlags(&watch_stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  const size_t bytes = size_t{options_.num_signal_ids} * static_cast<size_t>(world_) * sizeof(uint64_t);
  OVERLACE_TRY(cuda_status(cudaMalloc(reinterpret_cast<void**>(&ticket_), bytes), "cudaMalloc (tickets)"));
  OVERLACE_TRY(cuda_status(cudaMemset(ticket_, 0, bytes), "cudaMemset (tickets)"));
  base::Result<std::shared_ptr<StreamWordPool>> words = StreamWordPool::open();
  if (!words.ok()) return words.status();
  word_pool_ = std::move(*words);
  ControlBlock block;
  block.layout_hash = layout_.hash();
  block.generation = control_.generation();
  block.pid = facts_[static_cast<size_t>(rank_)].pid;
  block.rank = rank_;
  block.state = static_cast<uint32_t>(RankState::alive);
  OVERLACE_TRY(cuda_status(cudaMemcpy(heap_->base(rank_), &block, sizeof block, cudaMemcpyHostToDevice),
                           "cudaMemcpy (control block)"));
  OVERLACE_TRY(load_registered_kernels(facts_[static_cast<size_t>(rank_)].compute_capability));
  return cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// Each mapping shows the heap of the rank that it is meant for.
base::Status CudaPeerState::check_peers() {
  const DeviceGuard guard(device_);
  for (int peer : local_) {
    ControlBlock block;
    OVERLACE_TRY(cuda_status(cudaMemcpy(&block, heap_->base(peer), sizeof block, cudaMemcpyDeviceToHost),
                             "cudaMemcpy (control block)"));
    if (block.magic != kHeapMagic || block.rank != peer || block.generation != control_.generation())
      return base::error(Errc::internal, "the mapping of rank {}'s heap shows magic {}, rank {}; wanted {}, {}", peer,
                         block.magic, block.rank, kHeapMagic, peer);
    if (block.layout_hash != layout_.hash())
      return base::error(Errc::layout_mismatch, "heap layout: rank {} has {}, rank {} has {}", rank_, layout_.hash(),
                         peer, block.layout_hash);
  }
  return {};
}

base::Status CudaPeerState::prove_pairs() {
  if (world_ == 1) return {};
  const DeviceGuard guard(device_);
  SelfTest test{.control = control_, .heap = *heap_, .local = local_};
  test.user_offset = layout_.user.offset;
  test.user_bytes = layout_.user.bytes;
  test.test_atomics = atomics_;
  test.test_order = !sharing_.between_processes;
  test.stream = stream_;
  test.second = watch_stream_;
  test.timeout_ms = options_.timeout_ms;
  base::Result<SelfTestResult> result = run_self_test(test);
  if (!result.ok()) return result.status();
  copy_then_flag_ = result->copy_then_flag;
  return {};
}

TeamPod CudaPeerState::make_pod(const std::vector<int>& members, int rank, uint32_t team_id) {
  TeamPod pod{};
  pod.rank = rank;
  pod.size = static_cast<int32_t>(members.size());
  for (size_t i = 0; i < members.size() && i < static_cast<size_t>(kPodPeers); ++i)
    pod.heap[i] = heap_->base(members[i]);
  if (members.size() > static_cast<size_t>(kPodPeers)) {
    std::vector<char*> bases;
    for (const int member : members) bases.push_back(heap_->base(member));
    base::Result<char* const*> table = make_table(bases);
    table.status().or_throw();
    pod.heap_more = *table;
  }
  pod.sig_off = layout_.slots.offset;
  pod.sig_pitch = layout_.slot_pitch;
  pod.sig_stride = layout_.slot_stride;
  pod.num_ids = layout_.num_ids;
  pod.caps = copy_then_flag_ ? kCapCopyThenFlag : 0;
  pod.team_id = team_id;
  pod.ticket = ticket_;
  pod.abort_word = &host_[0].abort_word;
  pod.record = &host_[0].record;
  pod.timeout_ns = timeout_ns();
  pod.claim = reinterpret_cast<uint32_t*>(heap_->base(rank_) + kClaimOffset);
  return pod;
}

uint32_t* CudaPeerState::pipeline_word() { return reinterpret_cast<uint32_t*>(heap_->base(rank_) + kPipelineOffset); }

}  // namespace cuda_peer
}  // namespace overlace::runtime
