#include "src/exec/cuda/net.h"

#include <algorithm>

#include "overlace/net_engine.h"
#include "overlace/runtime.h"
#include "src/base/ceil_div_pod.h"
#include "src/exec/cuda/streams.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/state.h"

namespace overlace::exec {
namespace {

namespace node = runtime::cuda_peer;

constexpr size_t kAlign = 256;
constexpr size_t kTokenBytes = 8;  // of a message without data

size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }

bool is_one_piece(const TensorView& t) {
  const int last = t.ndim - 1;
  if (t.dim(last) > 1 && t.stride(last) != 1) return false;
  return t.ndim == 1 || t.dim(0) <= 1 || t.stride(0) == t.dim(1);
}

TensorView rows_at(void* data, const TensorView& like) {
  TensorView out = like;
  out.data = data;
  for (int64_t i = out.ndim - 1, stride = 1; i >= 0; --i) {
    out.strides[static_cast<size_t>(i)] = stride;
    stride *= out.sizes[static_cast<size_t>(i)];
  }
  return out;
}

/// Room for the box if its memory may have gaps: callers' tensors may, others where the box is not whole rows.
size_t room_of(const Program& program, const spec::Box& box) {
  const auto b = static_cast<size_t>(box.buffer);
  const spec::Buffer& buffer = program.schedule.buffers[b];
  const std::vector<int64_t>& shape = program.expansion.buffer_shapes[b];
  bool is_whole = true, is_one_piece = buffer.space != spec::Space::argument;
  for (int i = box.ndim - 1; i >= 0; --i) {
    is_one_piece = is_one_piece && (is_whole || box.count[i] == 1);
    is_whole = is_whole && box.count[i] == shape[static_cast<size_t>(i)];
  }
  return is_one_piece ? 0 : base::round_up(static_cast<size_t>(box.numel()) * dtype_bytes(buffer.dtype), kAlign);
}

size_t room_of(const Program& program, const spec::Round& round) {
  size_t bytes = 0;
  for (const spec::Message& m : round) {
    if (m.from != program.rank() && m.to != program.rank()) continue;
    if (m.parts.empty()) bytes += kAlign;
    for (const auto& [from, to] : m.parts) bytes += room_of(program, m.from == program.rank() ? from : to);
  }
  return bytes;
}

}  // namespace

std::vector<int> groups_of(const Team& team) {
  const node::CudaPeerState& state = node::cuda_peer_state(*team.runtime().state().backend);
  std::vector<int> out;
  for (int r = 0; r < team.size(); ++r) out.push_back(state.group(team.world_rank(r)));
  return out;
}

base::Result<std::unique_ptr<NetRounds>> NetRounds::make(const Program& program, Team& team,
                                                         std::vector<spec::Round> rounds) {
  if (team.net() == nullptr) {
    return base::error(Errc::not_supported,
                       "schedule {}: ranks of team \"{}\" are on several hosts, and it has no engine (NCCL) for what "
                       "passes between them",
                       program.schedule.family, team.name());
  }
  std::unique_ptr<NetRounds> out(new NetRounds(team, std::move(rounds)));
  for (const spec::Round& round : out->rounds_) out->room_bytes_ = std::max(out->room_bytes_, room_of(program, round));
  if (out->room_bytes_ == 0) return out;
  // By cudaMalloc: NCCL reads and writes it.
  void** address = reinterpret_cast<void**>(&out->room_);
  OVERLACE_TRY(cuda_status(cudaMalloc(address, out->room_bytes_), "cudaMalloc (messages)"));
  OVERLACE_TRY(runtime::cuda_peer::fill(out->room_, 0, out->room_bytes_));
  return out;
}

NetRounds::~NetRounds() { (void)cudaFree(room_); }

void* NetRounds::take(Plan* plan, size_t bytes) const {
  char* const at = room_ + plan->room;
  plan->room += base::round_up(bytes, kAlign);
  OVERLACE_ASSERT(plan->room <= room_bytes_);
  return at;
}

void NetRounds::add_box(const Call& call, const spec::Box& box, int peer, bool is_send, Plan* plan) const {
  const TensorView view = view_of(call, team_, box);
  void* data = view.data;
  if (!is_one_piece(view)) {
    data = take(plan, bytes_of(view));
    const TensorView packed = rows_at(data, view);
    is_send ? plan->packed.emplace_back(view, packed) : plan->unpacked.emplace_back(packed, view);
  }
  (is_send ? plan->sends : plan->receives).push_back({peer, data, bytes_of(view)});
}

base::Status NetRounds::run(const Call& call, int index, cudaStream_t stream) {
  const base::Status status = queue(call, rounds_[static_cast<size_t>(index)], stream);
  if (!status.ok()) team_.runtime().abort(status.code(), status.message());
  return status;
}

base::Status NetRounds::queue(const Call& call, const spec::Round& round, cudaStream_t stream) {
  Plan plan;
  const int me = team_.rank();
  for (const spec::Message& m : round) {
    if (m.from != me && m.to != me) continue;
    const bool is_send = m.from == me;
    const int peer = is_send ? m.to : m.from;
    for (const auto& [from, to] : m.parts) add_box(call, is_send ? from : to, peer, is_send, &plan);
    if (!m.parts.empty()) continue;
    (is_send ? plan.sends : plan.receives).push_back({peer, take(&plan, kTokenBytes), kTokenBytes});
  }
  for (const auto& [from, to] : plan.packed) OVERLACE_TRY(copy_view(from, to, stream));
  OVERLACE_TRY(exchange(
      plan, base::format("{}, {}", call.program.schedule.family, spec::round_text(call.program.schedule, me, round)),
      stream));
  for (const auto& [from, to] : plan.unpacked) OVERLACE_TRY(copy_view(from, to, stream));
  return add_signals(call, round, stream);
}

base::Status NetRounds::exchange(const Plan& plan, const std::string& what, cudaStream_t stream) {
  try {
    NetEngine& net = *team_.net();
    net.group_begin(what);
    for (const Piece& p : plan.sends) net.send(p.data, p.bytes, p.peer, StreamRef::cuda(stream));
    for (const Piece& p : plan.receives) net.recv(p.data, p.bytes, p.peer, StreamRef::cuda(stream));
    net.group_end();
  } catch (...) {
    return base::status_of_current_exception();
  }
  return {};
}

/// In my slots, in the place of the senders, who cannot reach them.
base::Status NetRounds::add_signals(const Call& call, const spec::Round& round, cudaStream_t stream) {
  node::SignalList list;
  for (const spec::Message& m : round) {
    if (m.to != team_.rank()) continue;
    for (const spec::ResolvedSet& set : m.sets) {
      node::SignalItem& item = list.items[list.count++];
      item = {};
      item.slot = node::slot_address(team_.pod(), m.to, call.program.id(call.copy, set.signal, set.slot), m.from);
      item.value = static_cast<uint64_t>(set.add);
      if (list.count < node::kMaxNodeItems) continue;
      OVERLACE_TRY(node::launch_signal(stream, list));
      list.count = 0;
    }
  }
  return node::launch_signal(stream, list);
}

}  // namespace overlace::exec
