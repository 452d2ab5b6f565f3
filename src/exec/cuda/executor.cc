// Runs a schedule on one GPU: sm lanes on the caller's stream in issue order, copy lanes on streams of their own.
//
// Waits run as one-warp kernels, most on the caller's stream between GEMMs, where no persistent kernel can be in their
// way; credits are awaited once at the start. What goes to another host leaves in rounds (net.h). All counts live in
// device memory: a wait compares with the ticket of its word, the signal of a copy is an 8-byte copy of the word's next
// total behind the data, and one kernel at the end of a call moves both on. So a captured call replays with its own
// values, and words that another schedule used before go on from where they are.
#include "src/exec/cuda/executor.h"

#include <algorithm>

#include "src/exec/arrows.h"
#include "src/exec/collective.h"
#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "src/spec/names.h"

namespace overlace::exec {

base::Status CudaExecutor::launch_kernel(const Call& call, Prepared& prepared) {
  const base::NvtxRange range("gemm", [&] { return labelled(call.label, call.program.schedule.family); });
  Marks marks;
  OVERLACE_TRY(mark(stream_, &marks.begin));
  prepared.kernel->bindings = &call.bindings;
  OVERLACE_TRY(call.bodies.kernel.launch(*prepared.kernel));
  OVERLACE_TRY(mark(stream_, &marks.end));
  if (!is_traced_) return {};
  const auto first = static_cast<size_t>(prepared.first_part);
  base::Span span = work_span(call, call.program.expansion.instances[first]);
  span.name = labelled(call.label, call.program.schedule.family);
  recorder_.recording.spans.push_back({std::move(span), marks.begin, marks.end});
  return {};
}

node::WaitItem CudaExecutor::wait_item(const Call& call, const spec::ResolvedWait& wait) const {
  const Program& p = call.program;
  const uint32_t id = p.id(call.copy, wait.signal, wait.slot);
  node::WaitItem item;  // the ticket takes the place of an epoch that starts at 1: expected = *epoch - 1 + at_least
  item.slot = node::slot_address(team_.pod(), team_.rank(), id, wait.from);
  item.epoch = team_.pod().ticket + word_index(team_.pod(), p, call.copy, {wait.signal, wait.slot, wait.from});
  item.adds_per_epoch = 1;
  item.at_least = 1 + (wait.previous ? 0 : static_cast<uint64_t>(wait.at_least));
  item.peer = static_cast<uint32_t>(wait.from);
  item.id = id;
  return item;
}

base::Status CudaExecutor::launch_waits(node::WaitList& list, cudaStream_t stream) {
  if (list.count == 0) return {};
  list.team = team_.pod();
  const base::Status status = node::launch_wait(stream, list);
  list.count = 0;
  return status;
}

/// An arrow leaves where the work of the put or kernel before the signal ends, and arrives where the wait is over.
void CudaExecutor::record(const Call& call, const spec::Instance& instance, const Marks& marks, bool has_work) {
  Recording& out = recorder_.recording;
  base::Span span = work_span(call, instance);
  const std::string lane = span.lane;
  if (has_work) out.spans.push_back({std::move(span), marks.begin, marks.end});
  const spec::ResolvedWait* first = nullptr;
  for (const spec::ResolvedWait& wait : instance.waits) {
    if (wait.previous) continue;
    if (first == nullptr) first = &wait;
    if (wait.from == team_.rank()) continue;
    const std::string word = call.program.word_name(wait.signal, wait.slot);
    out.halves.push_back({seen_half(word, calls_, wait.from, team_.rank(), lane, 0), marks.begin});
  }
  if (first != nullptr) out.spans.push_back({wait_span(call, *first, lane), marks.reached, marks.begin});
  std::vector<spec::ResolvedSet> near = instance.sets;
  std::erase_if(near, [&](const spec::ResolvedSet& set) { return is_far(set.at); });
  record_sent(call, near, lane, marks.end);
}

void CudaExecutor::record_sent(const Call& call, const std::vector<spec::ResolvedSet>& sets, const std::string& lane,
                               size_t mark) {
  for (const spec::ResolvedSet& set : sets) {
    if (set.at == team_.rank()) continue;
    const std::string word = call.program.word_name(set.signal, set.slot);
    recorder_.recording.halves.push_back({sent_half(word, calls_, team_.rank(), lane, 0, set.at), mark});
  }
}

base::Status CudaExecutor::run_traced(base::Trace&, std::string_view label, const char* name,
                                      const std::function<base::Status()>& work) {
  DeviceScope scope(device_);
  follow_channel();
  const base::Result<node::Capture> capture = node::capture_of(stream_);
  if (!capture.ok() || *capture) return work();
  Marks marks;
  OVERLACE_TRY(recorder_.mark(stream_, &marks.begin));
  const base::Status status = work();
  OVERLACE_TRY(recorder_.mark(stream_, &marks.end));
  recorder_.recording.spans.push_back({caller_span(team_.rank(), label, name), marks.begin, marks.end});
  return status;
}

/// Credits of the previous use of this copy, all in one wait; then the copy lanes may start.
base::Status CudaExecutor::prologue(const Call& call, Prepared& prepared) {
  if (prepared.has_previous) {
    node::WaitList list;
    Marks marks;
    const spec::ResolvedWait* first = nullptr;
    OVERLACE_TRY(mark(stream_, &marks.reached));
    for (const spec::Instance& instance : call.program.expansion.instances) {
      if (is_part(call.program.task(instance))) continue;
      for (const spec::ResolvedWait& wait : instance.waits) {
        if (!wait.previous) continue;
        if (first == nullptr) first = &wait;
        list.items[list.count++] = wait_item(call, wait);
        if (list.count == node::kMaxNodeItems) OVERLACE_TRY(launch_waits(list, stream_));
      }
    }
    OVERLACE_TRY(launch_waits(list, stream_));
    OVERLACE_TRY(mark(stream_, &marks.begin));
    if (is_traced_) {
      recorder_.recording.spans.push_back({wait_span(call, *first, kCallerLane), marks.reached, marks.begin});
    }
  }
  if (prepared.copy_lanes.empty()) return {};
  OVERLACE_TRY(cuda_status(cudaEventRecord(prepared.lanes[0], stream_), "cudaEventRecord"));
  for (const spec::Lane& lane : prepared.copy_lanes) {
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream_of(lane), prepared.lanes[0]), "cudaStreamWaitEvent"));
  }
  return {};
}

base::Status CudaExecutor::wait_for_deps(const Call& call, Prepared& prepared, const spec::Instance& instance,
                                         cudaStream_t stream) {
  for (int dep : instance.deps) {
    const auto d = static_cast<size_t>(dep);
    if (stream_of(call.program.expansion.instances[d].lane) == stream && prepared.last_round[d] < 0) continue;
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream, prepared.done[d]), "cudaStreamWaitEvent"));
  }
  return {};
}

/// By the stream itself, which takes no SM beside the kernel that counts. The threshold is the same in each call, so a
/// captured one waits alike. There the watcher has no event to look at; but the kernel waits for nobody, so it ends,
/// and with it the wait.
base::Status CudaExecutor::wait_for_counter(const Call& call, const Prepared& prepared, const spec::ResolvedWait& wait,
                                            cudaStream_t stream) {
  const size_t index = call.program.counter(wait.signal, wait.slot);
  const uint64_t full = prepared.full[index];
  if (full == 0) return {};  // nothing to store, nothing to count
  auto* const word = reinterpret_cast<uint64_t*>(prepared.counters.data() + index * kCounterPitch);
  node::CudaPeerState& state = node::cuda_peer_state(*team_.runtime().state().backend);
  if (is_captured_) return node::stream_wait(word, full, /*written_by_peer=*/false, state.stream_caps(), stream);
  return state.wait_in_stream(stream, {.word = word,
                                       .value = full,
                                       .peer = static_cast<uint32_t>(team_.rank()),
                                       .team = team_.pod().team_id,
                                       .id = static_cast<uint32_t>(index)});
}

base::Status CudaExecutor::wait_for_signals(const Call& call, const Prepared& prepared, const spec::Instance& instance,
                                            cudaStream_t stream) {
  node::WaitList list;
  for (const spec::ResolvedWait& wait : instance.waits) {
    if (wait.previous) continue;
    if (call.program.is_counter(wait.signal)) {
      OVERLACE_TRY(wait_for_counter(call, prepared, wait, stream));
      continue;
    }
    list.items[list.count++] = wait_item(call, wait);
    if (list.count == node::kMaxNodeItems) OVERLACE_TRY(launch_waits(list, stream));
  }
  return launch_waits(list, stream);
}

base::Status CudaExecutor::gemm(const Call& call, const spec::Instance& instance) {
  base::Result<std::vector<GemmBlock>> blocks = gemm_blocks(call, team_, instance);
  if (!blocks.ok()) return blocks.status();
  for (const GemmBlock& block : *blocks) {
    LtGemm g;
    g.m = block.c.dim(0);
    g.n = block.c.dim(1);
    g.k = block.a.dim(1);
    if (g.m == 0 || g.n == 0) continue;
    g.a_is_km = block.a_is_km;
    g.lda = std::max(block.a.stride(g.a_is_km ? 1 : 0), g.a_is_km ? g.m : g.k);  // of a single row: anything
    g.b_layout = block.b.stride(0) == 1 ? spec::BLayout::nk : spec::BLayout::kn;
    g.ldb = g.b_layout == spec::BLayout::nk ? std::max(block.b.stride(1), g.k) : std::max(block.b.stride(0), g.n);
    g.ldc = std::max(block.c.stride(0), g.n);
    g.batch = block.batch;
    g.batch_stride_a = block.batch_stride_a;
    g.batch_stride_c = block.batch_stride_c;
    g.in = block.a.dtype;
    if (block.b.dtype != g.in) g.b_in = block.b.dtype;
    g.out = block.c.dtype;
    g.accumulate = block.accumulate;
    g.bias = block.bias.defined();
    if (g.k == 0 && !g.bias) {  // the sum of no rows, of which cuBLASLt knows nothing
      OVERLACE_TRY(clear_rows(block.c, stream_));
      continue;
    }
    if (g.bias && block.bias.dtype != g.out) {
      return base::error(Errc::not_supported, "{}: bias is {}, wanted {} as the output, on GPUs",
                         instance.id(call.program.schedule), dtype_name(block.bias.dtype), dtype_name(g.out));
    }
    LtOperands operands{.a = block.a.data, .b = block.b.data, .c = block.c.data};
    if (g.bias) operands.bias = block.bias.data;
    operands.a_scale = block.a_scale.data, operands.b_scale = block.b_scale.data;
    g.scales = spec::scales_of(call.program.task(instance).params);
    const int64_t launches = g.scales == spec::Scales::rows ? g.batch : 1;  // a batch shares what it does not step over
    if (launches > 1) g.batch = 1;
    for (int64_t i = 0; i < launches; ++i) {
      OVERLACE_TRY(blas_->run(g, operands, 0, stream_));
      const auto step = [](auto* data, const TensorView& t, int64_t elements) {
        return static_cast<const char*>(static_cast<const void*>(data)) +
               elements * static_cast<int64_t>(dtype_bytes(t.dtype));
      };
      operands.a = step(operands.a, block.a, block.batch_stride_a);
      operands.c = const_cast<char*>(step(operands.c, block.c, block.batch_stride_c));
      if (launches > 1) operands.a_scale = step(operands.a_scale, block.a_scale, block.batch_stride_scale);
    }
  }
  return {};
}

base::Status CudaExecutor::copy(const Call& call, const spec::Instance& instance, cudaStream_t stream) {
  if (instance.reads.size() != 1 || instance.writes.size() != 1 ||
      instance.reads[0].size() != instance.writes[0].size()) {
    return base::error(Errc::bad_schedule, "{}: a copy of {} regions to {}; wanted: one to one, with as many boxes",
                       instance.id(call.program.schedule), instance.reads.size(), instance.writes.size());
  }
  for (size_t i = 0; i < instance.reads[0].size(); ++i) {
    const spec::Box &from = instance.reads[0][i], &to = instance.writes[0][i];
    if (from.empty() || is_far(to.rank)) continue;
    OVERLACE_TRY(copy_view(view_of(call, team_, from), view_of(call, team_, to), stream));
  }
  return {};
}

base::Status CudaExecutor::execute(const Call& call, const spec::Instance& instance, cudaStream_t stream) {
  const spec::Task& task = call.program.task(instance);
  switch (task.kind) {
    case spec::Kind::gemm:
      return gemm(call, instance);
    case spec::Kind::copy:
      return copy(call, instance, stream);
    case spec::Kind::collective:
      return run_collective(call, team_, instance, StreamRef::cuda(stream),
                            [&](const TensorView& from, const TensorView& to) { return copy_view(from, to, stream); });
    default:
      break;
  }
  const auto body = call.bodies.by_kind.find(task.kind);
  if (body == call.bodies.by_kind.end()) {
    return base::error(Errc::not_supported,
                       "{}: operator {} brings no body for a {} on GPUs; wanted: tasks that it computes there",
                       instance.id(call.program.schedule), call.program.schedule.op, spec::name_of(task.kind));
  }
  const BodyContext context = body_context(call, team_, instance, StreamRef::cuda(stream));
  if (context.writes.empty() || context.writes[0].empty()) return {};
  return body->second(context);
}

base::Status CudaExecutor::send_signals(const Call& call, const spec::Instance& instance, cudaStream_t stream) {
  const Cells& cells = cells_of(call.program);
  node::SignalList list;
  for (const spec::ResolvedSet& set : instance.sets) {
    if (is_far(set.at)) continue;
    const uint32_t id = call.program.id(call.copy, set.signal, set.slot);
    uint64_t* slot = node::slot_address(team_.pod(), set.at, id, team_.rank());
    const auto post = is_sm(instance.lane) ? cells.posts.end() : cells.posts.find({set.signal, set.slot, set.at});
    if (post != cells.posts.end()) {
      const size_t cell = static_cast<size_t>(call.copy) * cells.posts.size() + post->second;
      OVERLACE_TRY(node::stream_post(slot, cells.totals + cell, stream));
      continue;
    }
    node::SignalItem& item = list.items[list.count++];
    item = {};
    item.slot = slot;
    item.value = static_cast<uint64_t>(set.add);
    if (list.count == node::kMaxNodeItems) {
      OVERLACE_TRY(node::launch_signal(stream, list));
      list.count = 0;
    }
  }
  return list.count == 0 ? base::Status() : node::launch_signal(stream, list);
}

base::Status CudaExecutor::issue(const Call& call, Prepared& prepared, int index) {
  const spec::Instance& instance = call.program.expansion.instances[static_cast<size_t>(index)];
  cudaStream_t stream = stream_of(instance.lane);
  OVERLACE_TRY(wait_for_deps(call, prepared, instance, stream));
  if (is_part(call.program.task(instance))) {
    return index == prepared.first_part ? launch_kernel(call, prepared) : base::Status();
  }
  const base::NvtxRange range = task_range(call, instance);
  Marks marks;
  const bool has_waits = std::any_of(instance.waits.begin(), instance.waits.end(),
                                     [](const spec::ResolvedWait& wait) { return !wait.previous; });
  if (has_waits) {
    OVERLACE_TRY(mark(stream, &marks.reached));
    OVERLACE_TRY(wait_for_signals(call, prepared, instance, stream));
  }
  OVERLACE_TRY(mark(stream, &marks.begin));
  OVERLACE_TRY(execute(call, instance, stream));
  OVERLACE_TRY(mark(stream, &marks.end));
  OVERLACE_TRY(send_signals(call, instance, stream));
  const bool sends_data = prepared.last_round[static_cast<size_t>(index)] >= 0;
  if (cudaEvent_t ready = prepared.ready[static_cast<size_t>(index)]; ready != nullptr)
    OVERLACE_TRY(cuda_status(cudaEventRecord(ready, stream), "cudaEventRecord"));
  if (cudaEvent_t done = prepared.done[static_cast<size_t>(index)]; done != nullptr && !sends_data)
    OVERLACE_TRY(cuda_status(cudaEventRecord(done, stream), "cudaEventRecord"));
  if (is_traced_) record(call, instance, marks, /*has_work=*/!sends_data);
  return {};
}

/// Once all that is sent in it is ready. What was received is told by my own signals.
base::Status CudaExecutor::issue_round(const Call& call, Prepared& prepared, int index) {
  const base::NvtxRange range("copy", [&] { return labelled(call.label, kNetLaneName); });
  const cudaStream_t stream = stream_of(kNetLane);
  const spec::Round& round = prepared.net->rounds()[static_cast<size_t>(index)];
  for (const spec::Message& m : round) {
    if (m.from != team_.rank()) continue;
    const cudaEvent_t ready = prepared.ready[static_cast<size_t>(m.instance)];
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream, ready), "cudaStreamWaitEvent"));
  }
  Marks marks;
  OVERLACE_TRY(mark(stream, &marks.begin));
  OVERLACE_TRY(prepared.net->run(call, index, stream));
  OVERLACE_TRY(mark(stream, &marks.end));
  for (const spec::Message& m : round) {
    if (m.from != team_.rank()) continue;
    const auto i = static_cast<size_t>(m.instance);
    if (cudaEvent_t done = prepared.done[i]; done != nullptr && prepared.last_round[i] == index)
      OVERLACE_TRY(cuda_status(cudaEventRecord(done, stream), "cudaEventRecord"));
    if (!is_traced_) continue;
    base::Span span = work_span(call, call.program.expansion.instances[i]);
    span.lane = kNetLaneName;
    if (!m.parts.empty()) recorder_.recording.spans.push_back({std::move(span), marks.begin, marks.end});
    record_sent(call, m.sets, kNetLaneName, marks.end);
  }
  if (index != prepared.last_data) return {};
  return cuda_status(cudaEventRecord(prepared.sent[0], stream), "cudaEventRecord");
}

base::Status CudaExecutor::epilogue(const Call& call, Prepared& prepared) {
  const auto empty_counters = [&](cudaStream_t stream) {
    return node::stream_reset(prepared.counters.data(), prepared.full.size() * kCounterPitch, stream);
  };
  for (size_t i = 0; i < prepared.copy_lanes.size(); ++i) {
    if (prepared.copy_lanes[i] == kNetLane) continue;
    // Behind the last wait, when all is counted, and beside what the caller's stream does.
    if (prepared.emptying == prepared.copy_lanes[i]) OVERLACE_TRY(empty_counters(stream_of(prepared.copy_lanes[i])));
    const cudaEvent_t done = prepared.lanes[i + 1];
    OVERLACE_TRY(cuda_status(cudaEventRecord(done, stream_of(prepared.copy_lanes[i])), "cudaEventRecord"));
    OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream_, done), "cudaStreamWaitEvent"));
  }
  if (!prepared.full.empty() && !prepared.emptying) OVERLACE_TRY(empty_counters(stream_));
  const bool has_sent = prepared.last_data >= 0;
  if (has_sent) OVERLACE_TRY(cuda_status(cudaStreamWaitEvent(stream_, prepared.sent[0]), "cudaStreamWaitEvent"));
  for (const auto& [from, to, is_buffer] : call.copies_out) {
    TensorView first = from;  // of a fused kernel, which counts its calls itself: in the first part
    const size_t back = prepared.kernel && is_buffer ? static_cast<size_t>(call.copy) * prepared.kernel->pitch : 0;
    first.data = static_cast<char*>(from.data) - back;
    OVERLACE_TRY(prepared.kernel && is_buffer ? call.bodies.kernel.copy_out(*prepared.kernel, first, to)
                                              : copy_view(from, to, stream_));
  }
  const Cells& cells = cells_of(call.program);
  if (cells.num_moves == 0) return {};
  auto* const tickets = cells.moves + static_cast<size_t>(call.copy) * cells.num_moves;
  return node::launch_epoch_end(stream_, {.tickets = tickets, .count = cells.num_moves});
}

base::Status CudaExecutor::retain(const Call& call, const std::function<std::shared_ptr<void>()>& hold) {
  DeviceScope scope(device_);
  follow_channel();
  const base::Result<node::Capture> capture = node::capture_of(stream_);
  if (!capture.ok()) return capture.status();
  is_captured_ = static_cast<bool>(*capture);
  if (!is_captured_ || call.program.capture == capture->id) return {};
  if (static_cast<Prepared*>(call.program.prepared.get())->net != nullptr) {
    return base::error(Errc::capture, "schedule {} sends messages to other hosts, which cannot be captured",
                       call.program.schedule.family);
  }
  OVERLACE_TRY(node::retain(*capture, hold()));
  call.program.capture = capture->id;
  return {};
}

base::Status CudaExecutor::run(const Call& call) {
  DeviceScope scope(device_);
  auto& prepared = *static_cast<Prepared*>(call.program.prepared.get());
  ++calls_;
  is_traced_ = call.trace != nullptr && !is_captured_;
  call.has_begun = !is_captured_;  // what is captured has not run, so that peers miss nothing
  if (shares_memory(call.program)) OVERLACE_TRY(node::launch_barrier(stream_, team_.pod(), channel_.pod().barrier_id));
  OVERLACE_TRY(prologue(call, prepared));
  for (const spec::Step& step : prepared.steps) {
    OVERLACE_TRY(step.round < 0 ? issue(call, prepared, step.instance) : issue_round(call, prepared, step.round));
  }
  return epilogue(call, prepared);
}

base::Result<std::unique_ptr<Executor>> make_cuda_executor(Channel& channel) {
  if (channel.stream().kind != StreamRef::Kind::cuda) {
    return base::invalid_argument(
        "channel: the stream is a CPU lane, wanted a CUDA stream, as the runtime is cuda_peer");
  }
  auto blas = CublasLt::open(channel.team().runtime().device());
  if (!blas.ok()) return blas.status();
  return std::unique_ptr<Executor>(std::make_unique<CudaExecutor>(channel, std::move(blas).value()));
}

}  // namespace overlace::exec
