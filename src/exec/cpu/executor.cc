// Runs a program on the calling thread: lanes are queues, and the thread serves whichever head is ready.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "overlace/runtime.h"
#include "overlace/signal.h"
#include "src/exec/arrows.h"
#include "src/exec/backend.h"
#include "src/exec/collective.h"
#include "src/exec/cpu/copy.h"
#include "src/exec/cpu/link_trace.h"
#include "src/exec/cpu/queues.h"
#include "src/exec/cpu/scratch.h"
#include "src/exec/gemm.h"
#include "src/exec/timeline.h"
#include "src/runtime/state.h"
#include "src/runtime/wait.h"
#include "src/spec/items.h"
#include "src/spec/names.h"

namespace overlace::exec {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A word of mine and how much one call adds to it.
struct Consumption {
  int signal = 0;
  int64_t slot = 0;
  int from = 0;
  uint64_t adds = 0;
};

/// How far a call has come. Each call of a channel starts with the memory of the one before.
struct Progress {
  void start(const Program& program, const Queues& queues, int workers) {
    const size_t instances = program.expansion.instances.size();
    heads.start(queues, workers);
    blocked_since.assign(heads.size(), 0);
    num_done = 0;
    is_done.assign(instances, 0);
    is_sent.assign(instances, 0);
    began.assign(instances, 0);
    is_unfenced.assign(static_cast<size_t>(program.ranks()), 0);
    counters.assign(program.first_counter.back(), 0);
    sums.resize(heads.size());
    for (std::vector<char>& sum : sums) sum.clear();
  }

  std::vector<int> ready;
  Heads heads;
  std::vector<int64_t> blocked_since;  // per queue; 0: its head is not known to wait
  size_t num_done = 0;
  std::vector<char> is_done, is_sent;   // per instance; sent: its puts may still read their source
  std::vector<int64_t> began;           // per instance, in a trace
  std::vector<char> is_unfenced;        // per peer
  std::vector<uint64_t> counters;       // signals of scope device
  std::vector<std::vector<char>> sums;  // of the bodies of a kernel's parts, per queue
};

/// What is computed once per program.
struct CpuPrepared {
  std::vector<Consumption> consumptions;
  /// Some transfer waits for a peer, so long products look after the lanes in between.
  bool has_waiting_transfers = false;
  std::vector<spec::Item> items;
  Queues queues;
};

/// One without the adversary. It has 1 to 3, by its seed if its options do not say.
int num_workers(const AdversaryOptions& adversary) {
  if (!adversary.enabled) return 1;
  return adversary.workers != 0 ? adversary.workers : 1 + static_cast<int>(adversary.seed % 3);
}

/// One call. NOTE: a wait is satisfied when its word has grown by at_least since the ticket, which counts the adds of
/// all calls before; so nothing here depends on how long the channel has lived.
class CpuCall {
 public:
  CpuCall(Channel& channel, const Call& call, CpuPrepared& prepared, Progress& progress, uint64_t number)
      : call_(call),
        program_(call.program),
        prepared_(prepared),
        team_(channel.team()),
        pod_(channel.pod()),
        stream_(channel.stream()),
        number_(number),
        num_workers_(num_workers(team_.runtime().state().options.adversary)),
        random_(static_cast<uint32_t>(team_.runtime().state().options.adversary.seed * 31 +
                                      static_cast<uint64_t>(team_.rank()))),
        now_(progress) {
    now_.start(program_, prepared.queues, num_workers_);
  }

  /// NOTE: of a call that failed nothing is read any more either, whoever reported it: its tensors and what its parts
  /// have put may be freed.
  base::Status run() {
    const base::Status status = run_all();
    if (status.ok()) return status;
    team_.runtime().abort(status.code(), status.message());
    (void)flush(pod_);  // is told of the abort
    return status;
  }

 private:
  base::Status run_all() {
    while (now_.num_done < now_.is_done.size()) {
      const int lane = ready_lane(/*transfers_only=*/false);
      if (lane < 0) {
        OVERLACE_TRY(wait_for_any());
        continue;
      }
      OVERLACE_TRY(step(static_cast<size_t>(lane)));
    }
    OVERLACE_TRY(wait_status(flush(pod_), [] { return "flush of the call's puts"; }));
    for (const Consumption& c : prepared_.consumptions)
      consume(pod_, c.from, program_.id(call_.copy, c.signal, c.slot), c.adds);
    for (const Call::Out& out : call_.copies_out) copy_tensor(out.from, out.to);
    return {};
  }

  const spec::Instance& instance(int index) const { return program_.expansion.instances[static_cast<size_t>(index)]; }
  const spec::Instance* head(size_t lane) {
    const Step* const step = now_.heads.head(lane);
    return step == nullptr ? nullptr : &instance(step->instance);
  }

  bool deps_done(const spec::Instance& i) const {
    return std::all_of(i.deps.begin(), i.deps.end(), [&](int d) { return now_.is_done[static_cast<size_t>(d)] != 0; });
  }
  uint64_t expected(const spec::ResolvedWait& w) const {
    if (program_.is_counter(w.signal)) return static_cast<uint64_t>(w.at_least);
    const uint64_t before = ticket(pod_, w.from, program_.id(call_.copy, w.signal, w.slot));
    return w.previous ? before : before + static_cast<uint64_t>(w.at_least);
  }
  bool holds(const spec::ResolvedWait& w) const {
    if (program_.is_counter(w.signal)) return now_.counters[program_.counter(w.signal, w.slot)] >= expected(w);
    return test_ge(pod_, w.from, program_.id(call_.copy, w.signal, w.slot), expected(w));
  }
  bool waits_hold(const spec::Instance& i) const {
    // One worker may begin and wait inside. With more of them whoever waited there would hold back the others.
    const spec::Task& task = program_.task(i);
    if (num_workers_ == 1 && task.kind == spec::Kind::tiles && is_part(task)) return true;
    return std::all_of(i.waits.begin(), i.waits.end(), [&](const spec::ResolvedWait& w) { return holds(w); });
  }

  /// Whether the head of `lane` may start.
  bool is_ready(size_t lane, bool transfers_only) {
    if (transfers_only && !now_.heads.is_transfer(lane)) return false;
    const spec::Instance* i = head(lane);
    if (i == nullptr || !deps_done(*i)) return false;
    if (waits_hold(*i)) return true;
    if (now_.blocked_since[lane] == 0 && call_.trace != nullptr) now_.blocked_since[lane] = now_ns();
    return false;
  }
  bool is_any_ready(bool transfers_only) {
    size_t lane = 0;
    while (lane < now_.heads.size() && !is_ready(lane, transfers_only)) ++lane;
    return lane < now_.heads.size();
  }

  /// A queue whose head may start: the first one, or with several workers any; -1: none.
  int ready_lane(bool transfers_only) {
    now_.ready.clear();
    for (size_t lane = 0; lane < now_.heads.size(); ++lane) {
      if (!is_ready(lane, transfers_only)) continue;
      if (num_workers_ == 1) return static_cast<int>(lane);
      now_.ready.push_back(static_cast<int>(lane));
    }
    if (now_.ready.size() < 2) return now_.ready.empty() ? -1 : now_.ready[0];
    const std::optional<size_t> picked = runtime::observed_pick(pod_, now_.ready.size());
    return now_.ready[picked.has_value() ? *picked : random_() % now_.ready.size()];
  }

  base::Status wait_for_any() {
    const spec::Instance* first = nullptr;
    for (size_t lane = 0; lane < now_.heads.size(); ++lane) {
      const spec::Instance* i = head(lane);
      if (i != nullptr && deps_done(*i) && (first == nullptr || !now_.heads.is_transfer(lane))) first = i;
    }
    OVERLACE_ASSERT(first != nullptr);  // expand() gives a topological order, so one exists
    const auto unmet =
        std::find_if(first->waits.begin(), first->waits.end(), [&](const spec::ResolvedWait& w) { return !holds(w); });
    if (unmet == first->waits.end()) return {};
    // Once the named word has come, whatever is still missing is somebody else's: a timeout must name that one.
    const Errc code = runtime::poll_until(pod_, site_of(*unmet),
                                          [&] { return is_any_ready(/*transfers_only=*/false) || holds(*unmet); });
    return wait_status(code, [&] { return describe_wait(*first, *unmet); });
  }

  runtime::WaitSite site_of(const spec::ResolvedWait& wait) const {
    runtime::WaitSite site;  // of kind engine: any arrival wakes it
    site.peer = static_cast<uint32_t>(wait.from);
    site.call = static_cast<uint32_t>(number_);
    site.expected = expected(wait);
    if (program_.is_counter(wait.signal)) {
      site.word = &now_.counters[program_.counter(wait.signal, wait.slot)];
      return site;
    }
    site.id = program_.id(call_.copy, wait.signal, wait.slot);
    site.word = word(site.id, wait.from);
    return site;
  }

  const uint64_t* word(uint32_t id, int from) const {
    const TeamPod& team = pod_.team;
    char* own = team.heap_more == nullptr ? team.heap[team.rank] : team.heap_more[team.rank];
    const uint64_t index = uint64_t{id} * team.sig_stride + static_cast<uint64_t>(from);
    return reinterpret_cast<const uint64_t*>(own + team.sig_off + index * team.sig_pitch);
  }

  std::string describe_wait(const spec::Instance& i, const spec::ResolvedWait& w) const {
    return base::format("{} of {} for {} from rank {}", i.id(program_.schedule), program_.schedule.family,
                        program_.word_name(w.signal, w.slot), w.from);
  }

  /// `what` says it in words where it failed.
  template <class What>
  base::Status wait_status(Errc code, const What& what) {
    return code == Errc::ok ? base::Status() : wait_error(code, what());
  }
  /// The runtime's first cause, and what this rank waited for.
  base::Status wait_error(Errc code, const std::string& what) {
    const base::Status cause = runtime::cause_status(team_.runtime());
    if (cause.ok()) return base::error(code, "rank {}: {}", team_.rank(), what);
    return base::error(cause.code(), "{}; rank {} was at {}", cause.message(), team_.rank(), what);
  }

  /// Runs the head of `lane`, which is ready.
  base::Status step(size_t lane) {
    const Step step = *now_.heads.head(lane);
    const int index = step.instance;
    const spec::Instance& i = instance(index);
    for (int d : i.deps) {
      // A finished dependency promises that its sources may be overwritten.
      if (now_.is_sent[static_cast<size_t>(d)] == 0) continue;
      OVERLACE_TRY(wait_status(flush(pod_), [&] { return "flush before " + i.id(program_.schedule); }));
      std::fill(now_.is_sent.begin(), now_.is_sent.end(), 0);
    }
    int64_t& begin = now_.began[static_cast<size_t>(index)];
    if (call_.trace != nullptr && begin == 0) begin = trace_wait(lane, i);
    const base::NvtxRange range = task_range(call_, i);
    now_.heads.advance(lane);  // before the work: products may serve other lanes meanwhile
    OVERLACE_TRY(execute(step.item < 0 ? i : prepared_.items[static_cast<size_t>(step.item)].tile, index, lane));
    if (!now_.heads.is_last_of(index)) return {};
    now_.is_done[static_cast<size_t>(index)] = 1;
    ++now_.num_done;
    if (call_.trace != nullptr) trace_work(i, begin);
    send_signals(i);
    return {};
  }

  base::Status execute(const spec::Instance& i, int index, size_t lane) {
    const spec::Task& task = program_.task(i);
    switch (task.kind) {
      case spec::Kind::gemm:
        return multiply(i);
      case spec::Kind::copy:
        return copy(i, index);
      case spec::Kind::collective:
        return run_collective(call_, team_, i, stream_, [](const TensorView& from, const TensorView& to) {
          copy_tensor(from, to);
          return base::Status();
        });
      case spec::Kind::barrier:
        return wait_status(barrier(pod_), [&] { return "barrier " + i.id(program_.schedule); });
      case spec::Kind::tiles:
      case spec::Kind::reduce:
      case spec::Kind::pool:
      case spec::Kind::host:
        break;
    }
    const auto body = call_.bodies.by_kind.find(task.kind);
    if (body == call_.bodies.by_kind.end()) {
      return base::error(Errc::not_supported, "{}: operator {} brings no body for a {}; wanted: tasks that it computes",
                         task.id, program_.schedule.op, spec::name_of(task.kind));
    }
    BodyContext context = body_context(call_, team_, i, stream_);
    const PartAccess part = part_access(i, index, lane);
    if (is_part(task)) context.part = &part;
    return body->second(context);
  }

  PartAccess part_access(const spec::Instance& i, int index, size_t lane) {
    PartAccess part;
    if (!is_part(program_.task(i))) return part;
    part.sums = &now_.sums[lane];
    part.wait = [this, &i](bool previous) {
      for (const spec::ResolvedWait& w : i.waits)
        if (w.previous == previous) OVERLACE_TRY(wait_inside(i, w));
      return base::Status();
    };
    part.store = [this, &i, index](const TensorView& from, int64_t row, int64_t col) {
      spec::Box to = i.writes[0][0];
      to.begin[to.ndim - 2] += row;
      to.begin[to.ndim - 1] += col;
      to.count[to.ndim - 2] = from.dim(0);
      to.count[to.ndim - 1] = from.dim(1);
      if (to.rank == team_.rank()) return copy_box(from, to, index);
      // A put may read its source until the call is over.
      std::vector<char>& kept = stored_.emplace_back(static_cast<size_t>(from.numel()) * dtype_bytes(from.dtype));
      const TensorView source = TensorView::contiguous(kept.data(), from.dtype, {from.dim(0), from.dim(1)});
      copy_tensor(from, source);
      copy_box(source, to, index);
    };
    return part;
  }

  /// The lane is held meanwhile, but not those of transfers: two ranks that wait for each other's rows would wait
  /// forever if their own had not left yet.
  base::Status wait_inside(const spec::Instance& i, const spec::ResolvedWait& w) {
    while (!holds(w)) {
      if (const int lane = ready_lane(/*transfers_only=*/true); lane >= 0) {
        OVERLACE_TRY(step(static_cast<size_t>(lane)));
        continue;
      }
      const Errc code =
          runtime::poll_until(pod_, site_of(w), [&] { return holds(w) || is_any_ready(/*transfers_only=*/true); });
      OVERLACE_TRY(wait_status(code, [&] { return describe_wait(i, w); }));
    }
    return {};
  }

  base::Status multiply(const spec::Instance& i) {
    base::Result<std::vector<GemmBlock>> blocks = gemm_blocks(call_, team_, i);
    if (!blocks.ok()) return blocks.status();
    for (const GemmBlock& block : *blocks) {
      for (int64_t n = 0; n < block.batch; ++n) {
        GemmArgs g{.a = block.a,
                   .b = block.b,
                   .c = block.c,
                   .bias = block.bias,
                   .a_scale = block.a_scale,
                   .b_scale = block.b_scale,
                   .accumulate = block.accumulate};
        shift(&g.a, n * block.batch_stride_a);
        shift(&g.a_scale, n * block.batch_stride_scale);
        shift(&g.c, n * block.batch_stride_c);
        OVERLACE_TRY(multiply_rows(g));
      }
    }
    return {};
  }

  static void shift(TensorView* t, int64_t elements) {
    if (elements != 0) t->data = static_cast<char*>(t->data) + elements * static_cast<int64_t>(dtype_bytes(t->dtype));
  }

  /// Whole, or in row blocks between which transfers are served. NOTE: the blocks depend on the shape alone, so that
  /// the bits do not depend on timing.
  base::Status multiply_rows(const GemmArgs& g) {
    constexpr int64_t kRows = 256;
    const int64_t rows = g.c.dim(0);
    if (!prepared_.has_waiting_transfers || rows <= kRows) return cpu_gemm(g);
    for (int64_t first = 0; first < rows; first += kRows) {
      GemmArgs part = g;
      part.a = g.a.rows(first, std::min(kRows, rows - first));
      if (g.a_scale.ndim == 2) part.a_scale = g.a_scale.rows(first, std::min(kRows, rows - first));
      part.c = g.c.rows(first, std::min(kRows, rows - first));
      OVERLACE_TRY(cpu_gemm(part));
      for (int lane = ready_lane(/*transfers_only=*/true); lane >= 0; lane = ready_lane(/*transfers_only=*/true)) {
        OVERLACE_TRY(step(static_cast<size_t>(lane)));
      }
    }
    return {};
  }

  base::Status copy(const spec::Instance& i, int index) {
    if (i.reads.size() != 1 || i.writes.size() != 1 || i.reads[0].size() != i.writes[0].size()) {
      return base::error(Errc::bad_schedule, "{}: a copy of {} regions to {}; wanted: one to one, with as many boxes",
                         i.id(program_.schedule), i.reads.size(), i.writes.size());
    }
    for (size_t b = 0; b < i.reads[0].size(); ++b) {
      const spec::Box& from = i.reads[0][b];
      const spec::Box& to = i.writes[0][b];
      if (from.empty()) continue;
      copy_box(view_of(call_, team_, from), to, index);
    }
    return {};
  }

  /// To wherever the box lies; of instance `index`.
  void copy_box(const TensorView& source, const spec::Box& to, int index) {
    const TensorView target = view_of(call_, team_, to);
    if (to.rank == team_.rank()) return copy_tensor(source, target);
    const ByteRows rows = byte_rows(source);
    put_2d(pod_, to.rank, symmetric_offset(call_, to),
           static_cast<size_t>(target.stride(0)) * dtype_bytes(target.dtype), rows.data, rows.pitch, rows.row_bytes,
           rows.rows);
    now_.is_unfenced[static_cast<size_t>(to.rank)] = 1;
    now_.is_sent[static_cast<size_t>(index)] = 1;
  }

  void send_signals(const spec::Instance& i) {
    for (const spec::ResolvedSet& set : i.sets) {
      if (program_.is_counter(set.signal)) {
        now_.counters[program_.counter(set.signal, set.slot)] += static_cast<uint64_t>(set.add);
        continue;
      }
      if (now_.is_unfenced[static_cast<size_t>(set.at)] != 0) {
        fence(pod_, set.at);
        now_.is_unfenced[static_cast<size_t>(set.at)] = 0;
      }
      signal_add(pod_, set.at, program_.id(call_.copy, set.signal, set.slot), static_cast<uint32_t>(set.add));
    }
  }

  /// The time at which the waits were over and the work may begin.
  int64_t trace_wait(size_t lane, const spec::Instance& i) {
    const std::string name = spec::lane_name(i.lane);
    const int64_t end = now_ns();
    if (now_.blocked_since[lane] != 0 && !i.waits.empty()) {
      base::Span span = wait_span(call_, i.waits.front(), name);
      span.begin_ns = now_.blocked_since[lane];
      span.end_ns = end;
      call_.trace->spans.push_back(std::move(span));
    }
    now_.blocked_since[lane] = 0;
    for (const spec::ResolvedWait& w : i.waits) {
      if (w.previous || w.from == team_.rank()) continue;
      call_.trace->arrows.push_back(
          seen_half(program_.word_name(w.signal, w.slot), number_, w.from, team_.rank(), name, end));
    }
    return end;
  }

  /// NOTE: before the signals, which a peer may see at once: its half must not be the earlier one.
  void trace_work(const spec::Instance& i, int64_t begin) {
    base::Span span = work_span(call_, i);
    span.begin_ns = begin;
    span.end_ns = now_ns();
    for (const spec::ResolvedSet& set : i.sets) {
      if (set.at == team_.rank()) continue;
      call_.trace->arrows.push_back(
          sent_half(program_.word_name(set.signal, set.slot), number_, team_.rank(), span.lane, span.end_ns, set.at));
    }
    call_.trace->spans.push_back(std::move(span));
  }

  const Call& call_;
  Program& program_;
  CpuPrepared& prepared_;
  Team& team_;
  const ChannelPod& pod_;
  StreamRef stream_;
  uint64_t number_;
  const int num_workers_;
  std::minstd_rand random_;  // the adversary's; the explorer picks by its path
  Progress& now_;
  std::vector<std::vector<char>> stored_;  // what parts of a kernel put elsewhere
};

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(Channel& channel)
      : channel_(channel),
        link_(LinkTrace::of(channel.team().runtime(), channel.team().world_rank(channel.team().rank()))) {}

  Domain domain() const override { return Domain::cpu; }

  base::Status allocate(size_t bytes, const char* name, void** out) override {
    *out = scratch_.take(bytes);
    if (*out != nullptr) return {};
    return base::error(Errc::out_of_memory, "workspace of {}: {} bytes", name, bytes);
  }
  void deallocate(void* memory) override { scratch_.give_back(memory); }

  base::Status prepare(Program& program, const Bindings&, const Bodies&) override {
    auto prepared = std::make_shared<CpuPrepared>();
    const auto& table = program.expansion.adds_table;
    for (size_t signal = 0; signal < table.size(); ++signal) {
      if (program.is_counter(static_cast<int>(signal))) continue;  // each call begins with zeros
      for (size_t i = 0; i < table[signal].size(); ++i) {
        if (table[signal][i] == 0) continue;
        const int64_t ranks = program.ranks(), word = static_cast<int64_t>(i);
        prepared->consumptions.push_back({static_cast<int>(signal), word / ranks, static_cast<int>(word % ranks),
                                          static_cast<uint64_t>(table[signal][i])});
      }
    }
    for (const spec::Instance& i : program.expansion.instances) {
      prepared->has_waiting_transfers |= is_transfer(program.task(i)) && (!i.waits.empty() || !i.deps.empty());
    }
    base::Result<std::vector<spec::Item>> items = spec::items_of(program.schedule, program.expansion, {});
    if (!items.ok()) return items.status();
    prepared->items = std::move(*items);
    prepared->queues = Queues(program, prepared->items);
    program.prepared = prepared;
    return {};
  }

  base::Status run(const Call& call) override {
    call.has_begun = true;
    if (shares_memory(call.program)) {
      if (const Errc code = barrier(channel_.pod()); code != Errc::ok)
        return base::error(code, "rank {}: the barrier before a call whose memory is shared", channel_.team().rank());
    }
    return run_over_link(call);
  }

  base::Status run_traced(base::Trace& trace, std::string_view label, const char* name,
                          const std::function<base::Status()>& work) override {
    base::Span span = caller_span(channel_.team().rank(), label, name);
    span.begin_ns = now_ns();
    const base::Status status = work();
    span.end_ns = now_ns();
    trace.spans.push_back(std::move(span));
    return status;
  }

  base::Status drain() override {
    const Errc code = quiet(channel_.pod());
    if (code == Errc::ok) return {};
    return base::error(code, "rank {}: puts of this channel did not complete", channel_.team().rank());
  }

 private:
  base::Status run_over_link(const Call& call) {
    auto& prepared = *static_cast<CpuPrepared*>(call.program.prepared.get());
    TakenOut<Progress> progress(progress_);
    CpuCall run(channel_, call, prepared, progress.value, ++calls_);
    if (call.trace == nullptr || link_ == nullptr) return run.run();
    call.trace->emulated = true;
    link_->start();
    const base::Status status = run.run();
    link_->stop(call.label, call.trace);
    return status;
  }

  Channel& channel_;
  Scratch scratch_;
  Progress progress_;                // taken out while a call runs, as its bodies may make calls of this channel
  std::shared_ptr<LinkTrace> link_;  // null: no emulated link
  uint64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(Channel& channel) { return std::make_unique<CpuExecutor>(channel); }

}  // namespace overlace::exec
