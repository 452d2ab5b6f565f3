// Runs the graph: events start nodes, end flows and carry adds to words.
#include <algorithm>
#include <cmath>

#include "src/sim/engine/engine.h"
#include "src/sim/schedule/graph.h"
#include "src/spec/issue.h"
#include "src/spec/names.h"

namespace overlace::sim {
namespace {

/// What the handle of an event means: its top bits; the rest is a number.
enum class What : uint32_t { begin_call, launch, flow, flow_end, complete, arrive, settle };
constexpr uint32_t kNumberBits = 29;
constexpr uint32_t handle_of(What what, uint32_t number) { return static_cast<uint32_t>(what) << kNumberBits | number; }

constexpr uint32_t kNone = ~0u;

class Run {
 public:
  Run(const Graph& graph, const spec::Machine& machine, const SimOptions& options)
      : graph_(graph),
        machine_(machine),
        options_(options),
        fluid_(static_cast<uint32_t>(graph.num_simulated())),
        state_(graph.nodes.size()),
        waiters_(graph.waits.size()),
        calls_(graph.expansions.size(), 0) {
    const size_t words = graph.adds_per_epoch.size();
    values_.assign(words * static_cast<size_t>(graph.depth), 0);
    heads_.assign(words, kNone);
    entered_.assign(graph.members.size(), 0);
    if (options.has_spans) sent_.resize(values_.size());
    out_.bytes.resize(graph.expansions.size());
    out_.call_ps.assign(static_cast<size_t>(options.calls), 0);
    lost_.assign(graph.expansions.size(), 0);
  }

  base::Result<SimResult> run();

 private:
  struct State {
    Time ready = 0, begin = 0;
    Time free = 0;  // its lane and deps let it start
    int missing = 0;
    uint32_t flow = kNone;
    bool is_done = false;
    double slower = 1;
  };

  void add_resources();
  void handle(const Event& event);
  void begin_call(int rank, Time now);
  void ready(uint32_t id, Time now);
  void launch(uint32_t id, Time now);
  void start_flow(uint32_t id, Time now);
  void end_work(uint32_t id, Time now);
  void complete(uint32_t id, Time now);
  void arrive(uint32_t number, Time now);
  void want_settle(Time now);
  void record(uint32_t id, Time end);
  void record_wait(uint32_t id, Time now);
  int64_t threshold(const WaitFor& wait) const;
  /// The index of a word in the copy that the rank's call uses.
  size_t index_of(int rank, uint32_t word) const {
    return static_cast<size_t>(copy_of(rank)) * graph_.adds_per_epoch.size() + word;
  }
  int64_t value(int rank, uint32_t word) const { return values_[index_of(rank, word)]; }
  int copy_of(int rank) const { return calls_[static_cast<size_t>(rank)] % graph_.depth; }
  std::string deadlock() const;
  std::string blame(uint32_t id, uint32_t* next) const;

  const Graph& graph_;
  const spec::Machine& machine_;
  const SimOptions& options_;
  EventQueue queue_;
  Fluid fluid_;
  std::vector<State> state_;
  struct Waiter {
    uint32_t next = kNone;
    bool is_waiting = false;
  };
  std::vector<Waiter> waiters_;  // by wait: list of those that a word has
  std::vector<uint32_t> heads_;  // by word
  std::vector<int64_t> values_;  // by copy, then word
  std::vector<int> calls_;       // by rank: the call it is in
  std::vector<int> entered_;     // by collective
  std::vector<double> lost_;     // by rank
  std::map<std::pair<int, int>, Time> first_piece_;
  struct Sent {
    uint32_t node = kNone;
    Time end = 0;  // of its span
  };
  std::vector<Sent> sent_;  // by copy, then word: the last add, for arrows
  bool settles_ = false;
  int num_ended_ = 0;
  SimResult out_;
};

void Run::add_resources() {
  const auto add = [&](double GBps) { (void)fluid_.add_resource(GBps > 0 ? GBps * 1e-3 : 1e9); };
  for (int rank = 0; rank < graph_.num_simulated(); ++rank) {
    add(machine_.link.egress_GBps.value);
    add(machine_.link.ingress_GBps.value);
    add(machine_.memory.hbm_GBps.value);
    (void)fluid_.add_resource(machine_.gemm.sustained_TFLOPs.value > 0 ? machine_.gemm.sustained_TFLOPs.value : 1e12);
    (void)fluid_.add_resource(machine_.is_gpu ? 1e9 : machine_.sms);
  }
  if (options_.has_contention) fluid_.set_contention(machine_.contention);
}

base::Result<SimResult> Run::run() {
  add_resources();
  for (int rank = 0; rank < graph_.num_simulated(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    double start = r < options_.start_us.size() ? options_.start_us[r] : 0;
    if (options_.seed != 0) start += std::abs(normal(options_.seed, r, 0, 1000)) * machine_.noise.start_skew_us.value;
    queue_.push(ps_of_us(start), handle_of(What::begin_call, static_cast<uint32_t>(rank)));
  }
  const Limits limits{options_.max_events, ps_of_us(options_.max_us)};
  OVERLACE_TRY(run_events(queue_, limits, [this](const Event& event) { handle(event); }));
  if (num_ended_ != graph_.num_simulated()) return base::error(Errc::bad_schedule, "{}", deadlock());
  out_.time_ps = out_.call_ps.back();
  out_.events = queue_.num_popped();
  out_.bound_us = graph_.bound_us;
  out_.serial_us = graph_.serial_us;
  out_.host_us = graph_.host_us;
  out_.contention_us = *std::max_element(lost_.begin(), lost_.end()) * 1e-6;
  out_.static_bytes = graph_.static_bytes;
  for (RankBytes& b : out_.static_bytes) {
    b.egress *= options_.calls;
    b.ingress *= options_.calls;
    b.memory *= options_.calls;
  }
  if (out_.bytes != out_.static_bytes) {
    return base::error(Errc::internal, "simulation: sanity: schedule {} moved other bytes than its regions say",
                       graph_.schedule->family);
  }
  for (auto* list : {&out_.bytes, &out_.static_bytes}) list->resize(static_cast<size_t>(graph_.ranks), list->front());
  return std::move(out_);
}

void Run::handle(const Event& event) {
  const uint32_t number = event.handle & ((1u << kNumberBits) - 1);
  switch (static_cast<What>(event.handle >> kNumberBits)) {
    case What::begin_call:
      return begin_call(static_cast<int>(number), event.t_ps);
    case What::launch:
      return launch(number, event.t_ps);
    case What::flow:
      return start_flow(number, event.t_ps);
    case What::flow_end:
      if (state_[number].flow == kNone || !fluid_.finish(event.t_ps, state_[number].flow)) return;
      lost_[static_cast<size_t>(graph_.nodes[number].rank)] +=
          static_cast<double>(fluid_.lost_to_contention(state_[number].flow));
      state_[number].flow = kNone;
      want_settle(event.t_ps);
      return end_work(number, event.t_ps);
    case What::complete:
      return complete(number, event.t_ps);
    case What::arrive:
      return arrive(number, event.t_ps);
    case What::settle:
      settles_ = false;
      return fluid_.settle(event.t_ps, queue_);
  }
}

/// Rates are solved once per time, behind everything else that happens then.
void Run::want_settle(Time now) {
  if (settles_) return;
  settles_ = true;
  queue_.push(now, handle_of(What::settle, 0), EventQueue::kLast);
}

/// In epoch e of a copy a wait holds when value >= (e - 1) * A + at_least.
int64_t Run::threshold(const WaitFor& wait) const {
  const int rank = graph_.nodes[wait.node].rank;
  const int64_t before = calls_[static_cast<size_t>(rank)] / graph_.depth;
  return before * graph_.adds_per_epoch[wait.word] + wait.at_least;
}

void Run::begin_call(int rank, Time now) {
  const auto r = static_cast<size_t>(rank);
  const uint32_t first = graph_.first_of_rank[r], last = graph_.first_of_rank[r + 1];
  const double slower = r < options_.slower.size() ? options_.slower[r] : 1;
  for (uint32_t id = first; id < last; ++id) {
    const Node& node = graph_.nodes[id];
    State& state = state_[id];
    state = State{};
    state.missing = node.preds;
    state.ready = state.free = now;
    state.slower = slower;
    if (options_.seed != 0 && node.jitter >= 0) {
      const auto draw = static_cast<uint64_t>(calls_[r]);
      state.slower *= std::exp(machine_.noise.kernel_sigma.value *
                               normal(options_.seed, r, static_cast<uint64_t>(node.jitter), draw));
    }
    for (uint32_t w = node.first_wait; w < node.first_wait + node.num_waits; ++w) {
      const WaitFor& wait = graph_.waits[w];
      if (value(rank, wait.word) >= threshold(wait)) continue;
      ++state.missing;
      waiters_[w].is_waiting = true;
      waiters_[w].next = heads_[wait.word];
      heads_[wait.word] = w;
    }
  }
  for (uint32_t id = first; id < last; ++id) {
    if (state_[id].missing == 0) ready(id, now);
  }
}

void Run::ready(uint32_t id, Time now) {
  queue_.push(std::max(now, state_[id].ready) + graph_.nodes[id].launch_ps, handle_of(What::launch, id));
}

void Run::launch(uint32_t id, Time now) {
  const Node& node = graph_.nodes[id];
  if (node.collective >= 0) {  // nobody starts before all have come
    const std::vector<uint32_t>& members = graph_.members[static_cast<size_t>(node.collective)];
    int& entered = entered_[static_cast<size_t>(node.collective)];
    state_[id].begin = now;
    if (++entered < static_cast<int>(members.size())) return;
    entered = 0;
    for (const uint32_t member : members) start_flow(member, now);
    return;
  }
  state_[id].begin = now;
  if (options_.has_spans) {
    record_wait(id, now);
    if (node.part_of >= 0) first_piece_.try_emplace({node.rank, node.part_of}, now);
  }
  if (node.start_ps == 0) return start_flow(id, now);
  const double start = static_cast<double>(node.start_ps) * state_[id].slower;
  queue_.push(now + whole_ps(start), handle_of(What::flow, id));
}

void Run::start_flow(uint32_t id, Time now) {
  const Node& node = graph_.nodes[id];
  if (node.amount == 0) return end_work(id, now);
  FlowSpec spec;
  spec.work = node.amount;
  spec.most_per_ps = node.most_per_ps / state_[id].slower;
  spec.weight = node.weight;
  spec.intensity = node.intensity;
  spec.demands = {node.demands.data(), node.num_demands};
  spec.presences = {node.presences.data(), node.num_presences};
  spec.handle = handle_of(What::flow_end, id);
  state_[id].flow = fluid_.start(now, spec);
  want_settle(now);
}

void Run::end_work(uint32_t id, Time now) {
  const Node& node = graph_.nodes[id];
  RankBytes& mine = out_.bytes[static_cast<size_t>(node.rank)];
  mine.egress += node.link_bytes;
  mine.memory += node.memory_bytes;
  RankBytes& theirs = node.to >= 0 ? out_.bytes[static_cast<size_t>(graph_.home(node.to))] : mine;
  theirs.ingress += node.link_bytes;
  theirs.memory += node.peer_memory_bytes;
  if (options_.has_spans) record(id, now);
  if (node.post_ps == 0) return complete(id, now);
  queue_.push(now + node.post_ps, handle_of(What::complete, id));
}

void Run::complete(uint32_t id, Time now) {
  const Node& node = graph_.nodes[id];
  state_[id].is_done = true;
  for (uint32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
    const Edge& edge = graph_.edges[e];
    State& to = state_[edge.to];
    to.ready = to.free = std::max(to.ready, now + edge.delay);
    if (--to.missing == 0) ready(edge.to, now);
  }
  for (uint32_t a = node.first_set; a < node.first_set + node.num_sets; ++a) {
    const auto number = a * static_cast<uint32_t>(graph_.depth) + static_cast<uint32_t>(copy_of(node.rank));
    queue_.push(now + graph_.adds[a].delay, handle_of(What::arrive, number));
  }
  const auto r = static_cast<size_t>(node.rank);
  if (id != graph_.ends[r]) return;
  Time& end = out_.call_ps[static_cast<size_t>(calls_[r])];
  end = std::max(end, now);
  if (++calls_[r] < options_.calls) {
    queue_.push(now, handle_of(What::begin_call, static_cast<uint32_t>(node.rank)));
  } else {
    ++num_ended_;
  }
}

void Run::arrive(uint32_t number, Time now) {
  const auto depth = static_cast<uint32_t>(graph_.depth);
  const Add& add = graph_.adds[number / depth];
  const uint32_t copy = number % depth;
  int64_t& value = values_[static_cast<size_t>(copy) * graph_.adds_per_epoch.size() + add.word];
  value += add.add;
  for (uint32_t* link = &heads_[add.word]; *link != kNone;) {
    const uint32_t w = *link;
    const WaitFor& wait = graph_.waits[w];
    const int rank = graph_.nodes[wait.node].rank;
    if (static_cast<uint32_t>(copy_of(rank)) != copy || value < threshold(wait)) {
      link = &waiters_[w].next;
      continue;
    }
    *link = waiters_[w].next;
    waiters_[w].is_waiting = false;
    if (--state_[wait.node].missing == 0) ready(wait.node, now);
  }
}

/// Spans carry the ids of exec; a fused kernel is one span, named after the family, as a device reports it.
void Run::record(uint32_t id, Time end) {
  const Node& node = graph_.nodes[id];
  const auto r = static_cast<size_t>(node.rank);
  if (r < graph_.kernels.size() && graph_.kernels[r].first == id) {
    out_.spans.push_back({node.rank, graph_.kernels[r].second, graph_.schedule->family, "gemm",
                          state_[graph_.kernel_enters[r]].begin, end, 0, 0});
    return;
  }
  if (node.instance < 0) return;
  const spec::Instance& in = graph_.instance(node);
  const spec::Task& task = graph_.schedule->tasks[static_cast<size_t>(in.task)];
  const bool is_part = graph_.is_gpu && spec::is_part(task);
  if (is_part && !options_.has_parts) return;
  SimSpan span{node.rank,
               graph_.lane_name(node),
               in.id(*graph_.schedule),
               std::string(spec::category_of(task.kind)),
               state_[id].begin,
               end,
               task.kind == spec::Kind::gemm ? 0 : node.moved_bytes,
               task.kind == spec::Kind::gemm ? node.flops : 0};
  if (is_part) {
    const auto piece = first_piece_.find({node.rank, node.instance});
    if (piece != first_piece_.end()) span.begin_ps = piece->second;
    if (piece != first_piece_.end()) first_piece_.erase(piece);
  }
  out_.spans.push_back(std::move(span));
  for (uint32_t a = node.first_set; a < node.first_set + node.num_sets; ++a)
    sent_[index_of(node.rank, graph_.adds[a].word)] = {id, end};
}

/// From when the lane was free until the waits held; arrows to its end.
void Run::record_wait(uint32_t id, Time now) {
  const Node& node = graph_.nodes[id];
  if (node.instance < 0 || node.num_waits == 0) return;
  const WaitFor& first = graph_.waits[node.first_wait];
  if (first.previous) return;
  const spec::Task& task = graph_.schedule->tasks[static_cast<size_t>(graph_.instance(node).task)];
  if (graph_.is_gpu && spec::is_part(task)) return;
  const std::string lane = graph_.lane_name(node);
  const Time free = std::min(state_[id].free, now);
  if (free < now)
    out_.spans.push_back({node.rank, lane, "wait " + graph_.word_name(first.word), "wait", free, now, 0, 0});
  for (uint32_t w = node.first_wait; w < node.first_wait + node.num_waits; ++w) {
    const WaitFor& wait = graph_.waits[w];
    const Sent& sent = sent_[index_of(node.rank, wait.word)];
    if (wait.previous || sent.node == kNone) continue;
    const Node& from = graph_.nodes[sent.node];
    if (from.rank == node.rank) continue;
    out_.arrows.push_back(
        {graph_.word_name(wait.word), from.rank, node.rank, graph_.lane_name(from), lane, sent.end, now});
  }
}

/// What node `id` still waits for, in words; `next`: whose fault that is.
std::string Run::blame(uint32_t id, uint32_t* next) const {
  const Node& node = graph_.nodes[id];
  const auto name = [&](uint32_t n) {
    const Node& x = graph_.nodes[n];
    if (x.instance >= 0) return graph_.instance(x).id(*graph_.schedule);
    if (x.part_of >= 0)
      return graph_.expansions[static_cast<size_t>(x.rank)].instances[static_cast<size_t>(x.part_of)].id(
          *graph_.schedule);
    if (n == graph_.begins[static_cast<size_t>(x.rank)]) return std::string("begin");
    return std::string(n == graph_.ends[static_cast<size_t>(x.rank)] ? "end" : "kernel");
  };
  *next = kNone;
  for (uint32_t w = node.first_wait; w < node.first_wait + node.num_waits; ++w) {
    if (!waiters_[w].is_waiting) continue;
    const WaitFor& wait = graph_.waits[w];
    const auto from = static_cast<int>(wait.word % static_cast<uint32_t>(graph_.ranks));
    for (const Add& add : graph_.adds) {
      if (add.word == wait.word && !state_[add.node].is_done) *next = add.node;
    }
    return base::format("{} of rank {} waits for {} from rank {}: expected {}, seen {}{}", name(id), node.rank,
                        graph_.word_name(wait.word), from, threshold(wait), value(node.rank, wait.word),
                        *next == kNone ? ", and nobody will add" : "");
  }
  for (uint32_t n = graph_.first_of_rank[static_cast<size_t>(node.rank)];
       n < graph_.first_of_rank[static_cast<size_t>(node.rank) + 1]; ++n) {
    if (state_[n].is_done) continue;
    const Node& x = graph_.nodes[n];
    for (uint32_t e = x.first_edge; e < x.first_edge + x.num_edges; ++e) {
      if (graph_.edges[e].to != id) continue;
      *next = n;
      return base::format("{} of rank {} is behind {}", name(id), node.rank, name(n));
    }
  }
  if (node.collective >= 0) {
    for (const uint32_t member : graph_.members[static_cast<size_t>(node.collective)]) {
      if (state_[member].missing > 0) *next = member;
    }
    if (*next != kNone)
      return base::format("{} of rank {} waits for rank {} to come", name(id), node.rank, graph_.nodes[*next].rank);
  }
  return base::format("{} of rank {} never ended", name(id), node.rank);
}

/// Follows blame from a rank that has not ended until it comes back to somebody, or to somebody whom nobody frees.
std::string Run::deadlock() const {
  uint32_t at = kNone;
  for (size_t r = 0; r < graph_.ends.size() && at == kNone; ++r) {
    if (calls_[r] < options_.calls) at = graph_.ends[r];
  }
  std::vector<uint32_t> path;
  std::vector<std::string> words;
  while (at != kNone && std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    uint32_t next = kNone;
    words.push_back(blame(at, &next));
    at = next;
  }
  const size_t begin = at == kNone ? 0 : static_cast<size_t>(std::find(path.begin(), path.end(), at) - path.begin());
  std::string out = base::format("schedule {}: deadlock after {:.3f} us, {}: ", graph_.schedule->family,
                                 us_of_ps(queue_.now()), at == kNone ? "somebody waits forever" : "a circle of waits");
  for (size_t i = begin; i < words.size(); ++i) out += (i == begin ? "" : "; ") + words[i];
  return out;
}

base::Status check_options(const SimOptions& o, int ranks) {
  const auto refuse = [](const char* name, auto got, const char* wanted) {
    return base::invalid_argument("simulation: {} is {}, wanted {}", name, got, wanted);
  };
  if (o.calls < 1 || o.calls > 100000) return refuse("calls", o.calls, "1 to 100000");
  for (const auto* list : {&o.start_us, &o.slower}) {
    const char* name = list == &o.slower ? "slower" : "start_us";
    if (!list->empty() && list->size() != static_cast<size_t>(ranks))
      return base::invalid_argument("simulation: {} of {} ranks, wanted {} or none", name, list->size(), ranks);
    for (const double x : *list) {
      if (!(x >= 0 && x <= 1e9) || (list == &o.slower && x < 1e-3))
        return refuse(name, x, "a number from 0 (slower: 0.001) to 1e9");
    }
  }
  if (!(o.max_us > 0 && o.max_us <= 1e12)) return refuse("max_us", o.max_us, "> 0 and <= 1e12");
  return {};
}

}  // namespace

base::Result<SimResult> run_graph(const Graph& graph, const spec::Machine& machine, const SimOptions& options) {
  OVERLACE_TRY(check_options(options, graph.ranks));
  const size_t depth = static_cast<size_t>(graph.depth);
  if (graph.nodes.size() >= (size_t{1} << kNumberBits) || graph.adds.size() * depth >= (size_t{1} << kNumberBits))
    return base::error(Errc::not_supported, "simulation: {} nodes, at most 2^29", graph.nodes.size());
  return Run(graph, machine, options).run();
}

}  // namespace overlace::sim
