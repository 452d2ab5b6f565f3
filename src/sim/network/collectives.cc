#include "src/sim/network/collectives.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace overlace::sim {
namespace {

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

/// A heap that shows its least time.
class Later {
 public:
  bool empty() const { return heap_.empty(); }
  Time top_time() const { return heap_.front().t_ps; }
  void push(Time t_ps, uint32_t handle) {
    heap_.push_back({t_ps, pushed_++, handle});
    std::push_heap(heap_.begin(), heap_.end(), is_later);
  }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool is_later(const Event& a, const Event& b) {
    return a.t_ps != b.t_ps ? a.t_ps > b.t_ps : a.order > b.order;
  }
  std::vector<Event> heap_;
  uint32_t pushed_ = 0;
};

/// Pending arrivals, at most one per handle. In a regular collective nearly all are pushed in the order of their times:
/// those wait in a line, only the others in a heap.
class Arrivals {
 public:
  explicit Arrivals(size_t handles) : line_(handles) {}
  bool empty() const { return waiting_ == 0 && heap_.empty(); }
  void push(Time t_ps, uint32_t handle) {
    if (waiting_ > 0 && t_ps < last_) return heap_.push(t_ps, handle);
    last_ = t_ps;
    line_[wrapped(first_ + waiting_++)] = {t_ps, 0, handle};
  }
  Event pop() {
    if (waiting_ == 0 || (!heap_.empty() && heap_.top_time() < line_[first_].t_ps)) return heap_.pop();
    const Event event = line_[first_];
    first_ = wrapped(first_ + 1);
    --waiting_;
    return event;
  }

 private:
  size_t wrapped(size_t i) const { return i < line_.size() ? i : i - line_.size(); }
  std::vector<Event> line_;
  size_t first_ = 0, waiting_ = 0;
  Time last_ = 0;
  Later heap_;
};

}  // namespace

Collectives::Collectives(const Network& network, const CollectiveOptions& options)
    : network_(network), options_(options), router_(network_, options.seed) {
  for (const NetworkLink& link : network_.links) links_.add(link.figures.GBps, ps_of_us(link.figures.alpha_us));
  ready_.assign(static_cast<size_t>(network_.ranks), 0);
}

Time Collectives::send(int from, int to, uint64_t bytes, Time ready) {
  ++messages_;
  bytes_ += bytes;
  if (network_.is_star && options_.forwarding == Forwarding::store_and_forward) {
    const Time at_switch = links_.reserve(static_cast<uint32_t>(2 * from), ready, bytes).arrival;
    return links_.reserve(static_cast<uint32_t>(2 * to + 1), at_switch, bytes).arrival;
  }
  router_.path(from, to, &way_);
  if (options_.forwarding == Forwarding::cut_through) return links_.reserve_path(way_, ready, bytes).arrival;
  for (const uint32_t link : way_) ready = links_.reserve(link, ready, bytes).arrival;
  return ready;
}

/// `steps` times everybody sends a message to the right, each after the one before arrived from the left.
void Collectives::ring_pass(const std::vector<int>& members, uint64_t message_bytes, int steps) {
  const auto n = static_cast<uint32_t>(members.size());
  const auto splits = static_cast<uint32_t>(options_.splits);
  if (n < 2 || steps < 1) return;
  const uint64_t part = std::max<uint64_t>(1, ceil_div(message_bytes, splits));
  // A chain: what starts at a member, split by split. Its holder sends it to the right and the right one holds it.
  struct Chain {
    uint32_t holder;
    int steps_left;
  };
  std::vector<Chain> chains(size_t{n} * splits);
  Arrivals events(chains.size());
  for (uint32_t split = 0; split < splits; ++split)
    for (uint32_t i = 0; i < n; ++i) {
      chains[size_t{split} * n + i] = {i, steps};
      events.push(ready_[static_cast<size_t>(members[i])], split * n + i);
    }
  std::vector<Time> done(n, 0);
  while (!events.empty()) {
    const Event event = events.pop();
    Chain& chain = chains[event.handle];
    if (chain.steps_left == 0) {
      done[chain.holder] = std::max(done[chain.holder], event.t_ps);
      continue;
    }
    const uint32_t right = chain.holder + 1 == n ? 0 : chain.holder + 1;
    const Time arrival = send(members[chain.holder], members[right], part, event.t_ps);
    chain = {right, chain.steps_left - 1};
    events.push(arrival, event.handle);
  }
  for (uint32_t i = 0; i < n; ++i) ready_[static_cast<size_t>(members[i])] = done[i];
}

/// Everybody sends a message to each other member, next neighbour first.
void Collectives::direct(const std::vector<int>& members, uint64_t message_bytes) {
  const auto n = static_cast<uint32_t>(members.size());
  if (n < 2 || message_bytes == 0) return;
  const auto splits = static_cast<uint64_t>(options_.splits);
  const uint64_t part = std::max<uint64_t>(1, ceil_div(message_bytes, splits));
  Arrivals events(n);
  std::vector<uint32_t> sent(n, 0);
  std::vector<Time> done(n, 0);
  for (uint32_t i = 0; i < n; ++i) events.push(ready_[static_cast<size_t>(members[i])], i);
  while (!events.empty()) {
    const Event event = events.pop();
    const uint32_t i = event.handle;
    const uint32_t to = (i + 1 + sent[i] % (n - 1)) % n;
    const Time arrival = send(members[i], members[to], part, event.t_ps);
    done[to] = std::max(done[to], arrival);
    done[i] = std::max(done[i], event.t_ps);
    if (++sent[i] == (n - 1) * splits) continue;
    // The next message leaves when the first link of this one is free: at once on links of its own.
    const auto own = static_cast<uint32_t>(2 * members[i]);
    events.push(network_.is_star ? std::max(event.t_ps, links_.free_at(own)) : event.t_ps, i);
  }
  for (uint32_t i = 0; i < n; ++i) ready_[static_cast<size_t>(members[i])] = done[i];
}

/// Sums go up a binary tree and the result comes down, part by part.
void Collectives::tree(const std::vector<int>& members, uint64_t bytes) {
  const size_t n = members.size();
  const auto splits = static_cast<uint64_t>(options_.splits);
  const uint64_t part = std::max<uint64_t>(1, ceil_div(bytes, splits));
  std::vector<Time> start(n), done(n, 0);
  for (size_t i = 0; i < n; ++i) start[i] = ready_[static_cast<size_t>(members[i])];
  for (uint64_t split = 0; split < splits; ++split) {
    std::vector<Time> has = start;
    for (size_t i = n - 1; i > 0; --i)
      has[(i - 1) / 2] = std::max(has[(i - 1) / 2], send(members[i], members[(i - 1) / 2], part, has[i]));
    for (size_t i = 1; i < n; ++i) has[i] = send(members[(i - 1) / 2], members[i], part, has[(i - 1) / 2]);
    for (size_t i = 0; i < n; ++i) done[i] = std::max(done[i], has[i]);
  }
  for (size_t i = 0; i < n; ++i) ready_[static_cast<size_t>(members[i])] = done[i];
}

/// Blocks wander to the right; in step s everybody hands on the n - 1 - s blocks that are not at home yet.
void Collectives::ring_all_to_all(const std::vector<int>& members, uint64_t block_bytes) {
  const size_t n = members.size();
  const auto splits = static_cast<uint64_t>(options_.splits);
  const uint64_t part = std::max<uint64_t>(1, ceil_div(block_bytes, splits));
  std::vector<std::vector<Time>> has(splits, std::vector<Time>(n));
  for (auto& of_split : has)
    for (size_t i = 0; i < n; ++i) of_split[i] = ready_[static_cast<size_t>(members[i])];
  for (uint64_t step = 0; step + 1 < n; ++step)
    for (auto& of_split : has) {
      std::vector<Time> next(n);
      for (size_t i = 0; i < n; ++i)
        next[(i + 1) % n] = send(members[i], members[(i + 1) % n], part * (n - 1 - step), of_split[i]);
      of_split = std::move(next);
    }
  for (size_t i = 0; i < n; ++i)
    for (const auto& of_split : has)
      ready_[static_cast<size_t>(members[i])] = std::max(ready_[static_cast<size_t>(members[i])], of_split[i]);
}

void Collectives::restart() {
  latest_ = std::max(latest_, *std::max_element(ready_.begin(), ready_.end()));
  ready_.assign(ready_.size(), 0);
}

CollectiveTime Collectives::time() const {
  const Time last = std::max(latest_, *std::max_element(ready_.begin(), ready_.end()));
  return {us_of_ps(last), messages_, bytes_, {}};
}

// ---- whole collectives ----

namespace {

std::vector<int> numbers(int from, int count, int stride) {
  std::vector<int> list(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) list[static_cast<size_t>(i)] = from + i * stride;
  return list;
}

bool has_hosts(const Network& network) { return network.per_host > 1 && network.per_host < network.ranks; }

/// One part of a hierarchical all-reduce, on the ranks of each host or of each rail.
template <class Part>
void on_each_host(const Network& network, Part part) {
  for (int host = 0; host < network.ranks / network.per_host; ++host)
    part(numbers(host * network.per_host, network.per_host, 1));
}
template <class Part>
void on_each_rail(const Network& network, Part part) {
  for (int rail = 0; rail < network.per_host; ++rail)
    part(numbers(rail, network.ranks / network.per_host, network.per_host));
}

void hierarchical_all_reduce(const Network& network, uint64_t bytes, Collectives* run) {
  const auto k = static_cast<uint64_t>(network.per_host);
  const uint64_t hosts = static_cast<uint64_t>(network.ranks) / k;
  const auto in_host = [&](const std::vector<int>& members) { run->direct(members, ceil_div(bytes, k)); };
  on_each_host(network, in_host);
  on_each_rail(network, [&](const std::vector<int>& members) {
    run->ring_pass(members, ceil_div(bytes, k * hosts), static_cast<int>(2 * (hosts - 1)));
  });
  on_each_host(network, in_host);
}

/// First to the GPU of the own host that is on the receiver's rail, then to the receiver: one large message per host.
void rail_all_to_all(const Network& network, uint64_t bytes, Collectives* run) {
  const auto k = static_cast<uint64_t>(network.per_host);
  const uint64_t hosts = static_cast<uint64_t>(network.ranks) / k;
  on_each_host(network, [&](const std::vector<int>& members) { run->direct(members, ceil_div(bytes, k)); });
  on_each_rail(network, [&](const std::vector<int>& members) { run->direct(members, ceil_div(bytes, hosts)); });
}

void ring_per_dimension(const Network& network, uint64_t bytes, Collectives* run) {
  int stride = 1;
  for (const int size : network.dims) {
    for (int rank = 0; rank < network.ranks; ++rank)
      if (rank / stride % size == 0)
        run->ring_all_to_all(numbers(rank, size, stride), ceil_div(bytes, static_cast<uint64_t>(size)));
    stride *= size;
  }
}

/// A split is in one dimension while the next split is in the one before.
CollectiveTime rings_of_torus(const Network& network, uint64_t bytes, CollectiveOptions options) {
  const int splits = options.splits;
  options.splits = 1;
  Collectives run(network, options);
  for (int split = 0; split < splits; ++split) {
    run.restart();
    ring_per_dimension(network, ceil_div(bytes, static_cast<uint64_t>(splits)), &run);
  }
  CollectiveTime time = run.time();
  time.algorithm = "ring";
  return time;
}

}  // namespace

std::vector<std::string_view> algorithms(Collective op, const Network& network) {
  std::vector<std::string_view> names = {"ring", "direct"};
  if (op == Collective::all_reduce) names = {"ring", "two_shot", "tree"};
  if (has_hosts(network) && op == Collective::all_reduce) names.push_back("hierarchical");
  if (has_hosts(network) && op == Collective::all_to_all) names.push_back("rail");
  return names;
}

base::Result<CollectiveTime> run_collective(Collective op, std::string_view algorithm, const Network& network,
                                            uint64_t bytes, const CollectiveOptions& options) {
  std::string known;
  bool is_known = false;
  for (const std::string_view name : algorithms(op, network)) {
    known += (known.empty() ? "" : ", ") + std::string(name);
    is_known = is_known || name == algorithm;
  }
  if (!is_known) return base::invalid_argument("collective: algorithm is {}, wanted one of {}", algorithm, known);
  if (bytes < 1 || bytes > kMostBytes || options.splits < 1 || options.splits > 4096)
    return base::invalid_argument("collective: {} bytes in {} splits, wanted 1 to {} in 1 to 4096", bytes,
                                  options.splits, kMostBytes);
  Collectives run(network, options);
  const std::vector<int> all = numbers(0, network.ranks, 1);
  const auto n = static_cast<uint64_t>(network.ranks);
  const uint64_t block = ceil_div(bytes, n);
  const int passes = op == Collective::all_reduce ? 2 : 1;
  if (algorithm == "hierarchical")
    hierarchical_all_reduce(network, bytes, &run);
  else if (algorithm == "rail")
    rail_all_to_all(network, bytes, &run);
  else if (algorithm == "tree")
    run.tree(all, bytes);
  else if (algorithm != "ring")
    for (int pass = 0; pass < passes; ++pass) run.direct(all, block);
  else if (op != Collective::all_to_all)
    run.ring_pass(all, block, passes * (network.ranks - 1));
  else if (network.dims.size() > 1)
    return rings_of_torus(network, bytes, options);
  else
    run.ring_all_to_all(all, block);
  CollectiveTime time = run.time();
  time.algorithm = algorithm;
  return time;
}

base::Result<CollectiveTime> best_collective(Collective op, const Network& network, uint64_t bytes,
                                             const CollectiveOptions& options) {
  CollectiveTime best;
  for (const std::string_view name : algorithms(op, network)) {
    const base::Result<CollectiveTime> time = run_collective(op, name, network, bytes, options);
    if (!time.ok()) return time;
    if (best.algorithm.empty() || time->us < best.us) best = *time;
  }
  return best;
}

double lower_bound_us(Collective op, const Network& network, uint64_t bytes) {
  const double n = network.ranks, b = static_cast<double>(bytes);
  const double passes = op == Collective::all_reduce ? 2 : 1;
  std::vector<double> out(static_cast<size_t>(network.vertices), 0);
  double slowest = std::numeric_limits<double>::infinity();  // on hosts: the NIC; on tori all links are alike
  for (const NetworkLink& link : network.links) {
    out[static_cast<size_t>(link.from)] += link.figures.GBps;
    if (link.from < network.ranks) slowest = std::min(slowest, link.figures.GBps);
  }
  double bound = 0;
  for (int rank = 0; rank < network.ranks; ++rank)
    bound = std::max(bound, passes * (n - 1) / n * b / (out[static_cast<size_t>(rank)] * 1e3));
  if (has_hosts(network)) {
    const double k = network.per_host, share = 1 - k / n;
    bound = std::max(bound, passes * share * b / (op == Collective::all_to_all ? 1 : k) / (slowest * 1e3));
  }
  if (!network.dims.empty() && op == Collective::all_to_all) {
    const int longest = *std::max_element(network.dims.begin(), network.dims.end());
    const double halves = longest % 2 == 0 ? 0.25 : 0.25 - 0.25 / longest / longest;  // of pairs, across the middle
    const double links = 2 * n / longest;  // of one direction: through the middle, and through the wrap
    bound = std::max(bound, halves * n * b / (links * slowest * 1e3));
  }
  return bound;
}

}  // namespace overlace::sim
