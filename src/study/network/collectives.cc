#include "src/study/network/collectives.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/base/ceil_div_pod.h"

namespace overlace::study {
namespace {

/// A heap that shows its least time.
class Later {
 public:
  bool empty() const { return heap_.empty(); }
  sim::Time top_time() const { return heap_.front().t_ps; }
  void push(sim::Time t_ps, uint32_t handle) {
    heap_.push_back({t_ps, pushed_++, handle});
    std::push_heap(heap_.begin(), heap_.end(), is_later);
  }
  sim::Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), is_later);
    const sim::Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool is_later(const sim::Event& a, const sim::Event& b) {
    return a.t_ps != b.t_ps ? a.t_ps > b.t_ps : a.order > b.order;
  }
  std::vector<sim::Event> heap_;
  uint32_t pushed_ = 0;
};

/// Pending arrivals, at most one per handle. In a regular collective nearly all are pushed in the order of their times:
/// those wait in a line, only the others in a heap.
class Arrivals {
 public:
  explicit Arrivals(size_t handles) : line_(handles) {}
  bool empty() const { return waiting_ == 0 && heap_.empty(); }
  void push(sim::Time t_ps, uint32_t handle) {
    if (waiting_ > 0 && t_ps < last_) return heap_.push(t_ps, handle);
    last_ = t_ps;
    line_[wrapped(first_ + waiting_++)] = {t_ps, 0, handle};
  }
  sim::Event pop() {
    if (waiting_ == 0 || (!heap_.empty() && heap_.top_time() < line_[first_].t_ps)) return heap_.pop();
    const sim::Event event = line_[first_];
    first_ = wrapped(first_ + 1);
    --waiting_;
    return event;
  }

 private:
  size_t wrapped(size_t i) const { return i < line_.size() ? i : i - line_.size(); }
  std::vector<sim::Event> line_;
  size_t first_ = 0, waiting_ = 0;
  sim::Time last_ = 0;
  Later heap_;
};

}  // namespace

Collectives::Collectives(const Network& network, const CollectiveOptions& options)
    : network_(network), options_(options), router_(network_, options.seed) {
  for (const NetworkLink& link : network_.links) links_.add(link.figures.GBps, sim::ps_of_us(link.figures.alpha_us));
  ready_.assign(static_cast<size_t>(network_.ranks), 0);
}

sim::Time Collectives::send(int from, int to, uint64_t bytes, sim::Time ready) {
  ++messages_;
  bytes_ += bytes;
  if (network_.is_star) return send_over_star(from, to, bytes, ready);
  router_.path(from, to, &way_);
  return send_on(way_, bytes, ready);
}

sim::Time Collectives::send_over_star(int from, int to, uint64_t bytes, sim::Time ready) {
  const uint32_t way[] = {static_cast<uint32_t>(2 * from), static_cast<uint32_t>(2 * to + 1)};
  if (options_.forwarding == Forwarding::cut_through) return links_.reserve_path(way, ready, bytes).arrival;
  const sim::Time at_switch = links_.reserve(way[0], ready, bytes).arrival;
  return links_.reserve(way[1], at_switch, bytes).arrival;
}

sim::Time Collectives::send_on(const std::vector<uint32_t>& way, uint64_t bytes, sim::Time ready) {
  if (options_.forwarding == Forwarding::cut_through) return links_.reserve_path(way, ready, bytes).arrival;
  for (const uint32_t link : way) ready = links_.reserve(link, ready, bytes).arrival;
  return ready;
}

/// `steps` times everybody sends a message to the right, each after the one before arrived from the left.
void Collectives::ring_pass(const Groups& groups, uint64_t message_bytes, int steps) {
  std::vector<int> rank;        // by slot: members of all groups
  std::vector<uint32_t> right;  // slot of the neighbour
  for (const std::vector<int>& members : groups) {
    if (members.size() < 2) continue;
    const auto first = static_cast<uint32_t>(rank.size()), n = static_cast<uint32_t>(members.size());
    for (uint32_t i = 0; i < n; ++i) right.push_back(first + (i + 1) % n);
    rank.insert(rank.end(), members.begin(), members.end());
  }
  const auto slots = static_cast<uint32_t>(rank.size());
  const auto splits = static_cast<uint32_t>(options_.splits);
  if (slots == 0 || steps < 1) return;
  const uint64_t part = std::max<uint64_t>(1, base::ceil_div(message_bytes, splits));
  // A chain: what starts at a member, split by split. Its holder sends it to the right and the right one holds it.
  struct Chain {
    uint32_t holder;
    int steps_left;
  };
  std::vector<Chain> chains(size_t{slots} * splits);
  Arrivals events(chains.size());
  for (uint32_t split = 0; split < splits; ++split)
    for (uint32_t i = 0; i < slots; ++i) {
      chains[size_t{split} * slots + i] = {i, steps};
      events.push(ready_[static_cast<size_t>(rank[i])], split * slots + i);
    }
  std::vector<sim::Time> done(slots, 0);
  while (!events.empty()) {
    const sim::Event event = events.pop();
    Chain& chain = chains[event.handle];
    if (chain.steps_left == 0) {
      done[chain.holder] = std::max(done[chain.holder], event.t_ps);
      continue;
    }
    const uint32_t to = right[chain.holder];
    const sim::Time arrival = send(rank[chain.holder], rank[to], part, event.t_ps);
    chain = {to, chain.steps_left - 1};
    events.push(arrival, event.handle);
  }
  for (uint32_t i = 0; i < slots; ++i) ready_[static_cast<size_t>(rank[i])] = done[i];
}

/// Everybody sends a message to each other member, next neighbour first. A message asks for its links when the first of
/// them is free: had it asked before, links further on would be kept for it while they are idle.
template <class BytesOf>
void Collectives::send_to_all(const Groups& groups, BytesOf bytes_of) {
  struct Sender {
    int rank;
    uint32_t first, n, at;  // slot of the group's first member, its size, the own place in it
    uint32_t next;          // place of the next receiver
    uint64_t left;
  };
  const auto splits = static_cast<uint64_t>(options_.splits);
  std::vector<Sender> senders;
  for (const std::vector<int>& members : groups) {
    const auto first = static_cast<uint32_t>(senders.size()), n = static_cast<uint32_t>(members.size());
    for (uint32_t i = 0; n > 1 && i < n; ++i)
      senders.push_back({members[i], first, n, i, i + 1 == n ? 0 : i + 1, (n - 1) * splits});
  }
  const bool is_star = network_.is_star;
  std::vector<std::vector<uint32_t>> ways(is_star ? 0 : senders.size());  // of the next message
  const auto find_way = [&](uint32_t slot) {
    const Sender& from = senders[slot];
    if (!is_star) router_.path(from.rank, senders[from.first + from.next].rank, &ways[slot]);
  };
  Arrivals events(senders.size());
  std::vector<sim::Time> done(senders.size(), 0);
  for (uint32_t i = 0; i < senders.size(); ++i) {
    find_way(i);
    events.push(ready_[static_cast<size_t>(senders[i].rank)], i);
  }
  while (!events.empty()) {
    const sim::Event event = events.pop();
    Sender& from = senders[event.handle];
    const uint32_t to = from.first + from.next;
    done[event.handle] = std::max(done[event.handle], event.t_ps);
    if (const uint64_t bytes = base::ceil_div(bytes_of(from.rank, senders[to].rank), splits); bytes > 0) {
      ++messages_;
      bytes_ += bytes;
      const sim::Time arrival = is_star ? send_over_star(from.rank, senders[to].rank, bytes, event.t_ps)
                                        : send_on(ways[event.handle], bytes, event.t_ps);
      done[to] = std::max(done[to], arrival);
    }
    from.next = from.next + 1 == from.n ? 0 : from.next + 1;
    if (from.next == from.at) from.next = from.next + 1 == from.n ? 0 : from.next + 1;
    if (--from.left == 0) continue;
    find_way(event.handle);
    const uint32_t link = is_star ? static_cast<uint32_t>(2 * from.rank) : ways[event.handle].front();
    events.push(std::max(event.t_ps, links_.free_at(link)), event.handle);
  }
  for (size_t i = 0; i < senders.size(); ++i) ready_[static_cast<size_t>(senders[i].rank)] = done[i];
}

void Collectives::direct(const Groups& groups, uint64_t message_bytes) {
  if (message_bytes > 0) send_to_all(groups, [message_bytes](int, int) { return message_bytes; });
}

void Collectives::exchange(const Groups& groups, const std::function<uint64_t(int, int)>& bytes_of) {
  send_to_all(groups, bytes_of);
}

/// Sums go up a binary tree and the result comes down, part by part.
void Collectives::tree(const std::vector<int>& members, uint64_t bytes) {
  const size_t n = members.size();
  const auto splits = static_cast<uint64_t>(options_.splits);
  const uint64_t part = std::max<uint64_t>(1, base::ceil_div(bytes, splits));
  std::vector<sim::Time> start(n), done(n, 0);
  for (size_t i = 0; i < n; ++i) start[i] = ready_[static_cast<size_t>(members[i])];
  for (uint64_t split = 0; split < splits; ++split) {
    std::vector<sim::Time> has = start;
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
  const uint64_t part = std::max<uint64_t>(1, base::ceil_div(block_bytes, splits));
  std::vector<std::vector<sim::Time>> has(splits, std::vector<sim::Time>(n));
  for (auto& of_split : has)
    for (size_t i = 0; i < n; ++i) of_split[i] = ready_[static_cast<size_t>(members[i])];
  for (uint64_t step = 0; step + 1 < n; ++step)
    for (auto& of_split : has) {
      std::vector<sim::Time> next(n);
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
  const sim::Time last = std::max(latest_, *std::max_element(ready_.begin(), ready_.end()));
  return {sim::us_of_ps(last), messages_, bytes_, {}};
}

// ---- whole collectives ----

namespace {

std::vector<int> numbers(int from, int count, int stride) {
  std::vector<int> list(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) list[static_cast<size_t>(i)] = from + i * stride;
  return list;
}

/// Whether a group is several whole hosts.
bool has_hosts(const Network& network, const Grouping& grouping) {
  const int size = grouping.size == 0 ? network.ranks : grouping.size;
  return network.per_host > 1 && grouping.stride == 1 && size > network.per_host && size % network.per_host == 0;
}

/// The ranks of each host, and the ranks of a group that have the same place in their hosts.
Groups hosts_of(const Groups& groups, int per_host) {
  Groups out;
  for (const std::vector<int>& members : groups)
    for (size_t i = 0; i < members.size(); i += static_cast<size_t>(per_host))
      out.push_back(numbers(members[i], per_host, 1));
  return out;
}
Groups rails_of(const Groups& groups, int per_host) {
  Groups out;
  for (const std::vector<int>& members : groups)
    for (int rail = 0; rail < per_host; ++rail)
      out.push_back(numbers(members[0] + rail, static_cast<int>(members.size()) / per_host, per_host));
  return out;
}

void hierarchical_all_reduce(const Groups& groups, int per_host, uint64_t bytes, Collectives* run) {
  const auto k = static_cast<uint64_t>(per_host);
  const uint64_t hosts = groups[0].size() / k;
  run->direct(hosts_of(groups, per_host), base::ceil_div(bytes, k));
  run->ring_pass(rails_of(groups, per_host), base::ceil_div(bytes, k * hosts), static_cast<int>(2 * (hosts - 1)));
  run->direct(hosts_of(groups, per_host), base::ceil_div(bytes, k));
}

/// First to the GPU of the own host that is on the receiver's rail, then to the receiver: one large message per host.
void rail_all_to_all(const Groups& groups, int per_host, uint64_t bytes, Collectives* run) {
  const auto k = static_cast<uint64_t>(per_host);
  run->direct(hosts_of(groups, per_host), base::ceil_div(bytes, k));
  run->direct(rails_of(groups, per_host), base::ceil_div(bytes, groups[0].size() / k));
}

void ring_per_dimension(const Network& network, uint64_t bytes, Collectives* run) {
  int stride = 1;
  for (const int size : network.dims) {
    for (int rank = 0; rank < network.ranks; ++rank)
      if (rank / stride % size == 0)
        run->ring_all_to_all(numbers(rank, size, stride), base::ceil_div(bytes, static_cast<uint64_t>(size)));
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
    ring_per_dimension(network, base::ceil_div(bytes, static_cast<uint64_t>(splits)), &run);
  }
  CollectiveTime time = run.time();
  time.algorithm = "ring";
  return time;
}

}  // namespace

base::Result<Groups> groups_of(int ranks, const Grouping& grouping) {
  const int size = grouping.size == 0 ? ranks : grouping.size;
  if (size < 1 || grouping.stride < 1 || int64_t{size} * grouping.stride > ranks ||
      ranks % (size * grouping.stride) != 0)
    return base::invalid_argument("groups: {} ranks at a stride of {}, wanted a divisor of {} ranks", size,
                                  grouping.stride, ranks);
  Groups groups;
  for (int block = 0; block < ranks; block += size * grouping.stride)
    for (int first = 0; first < grouping.stride; ++first)
      groups.push_back(numbers(block + first, size, grouping.stride));
  return groups;
}

std::vector<std::string_view> algorithms(Collective op, const Network& network, const Grouping& grouping) {
  const bool is_whole = grouping.size == 0 || grouping.size == network.ranks;
  std::vector<std::string_view> names = {"ring", "direct"};
  if (op == Collective::all_reduce) names = {"ring", "two_shot", "tree"};
  if (!is_whole && op == Collective::all_reduce) names = {"ring", "two_shot"};
  if (!is_whole && op == Collective::all_to_all) names = {"direct"};
  if (has_hosts(network, grouping) && op == Collective::all_reduce) names.push_back("hierarchical");
  if (has_hosts(network, grouping) && op == Collective::all_to_all) names.push_back("rail");
  return names;
}

base::Result<CollectiveTime> run_collective(Collective op, std::string_view algorithm, const Network& network,
                                            uint64_t bytes, const CollectiveOptions& options,
                                            const Grouping& grouping) {
  const base::Result<Groups> groups = groups_of(network.ranks, grouping);
  if (!groups.ok()) return groups.status();
  std::string known;
  bool is_known = false;
  for (const std::string_view name : algorithms(op, network, grouping)) {
    known += (known.empty() ? "" : ", ") + std::string(name);
    is_known = is_known || name == algorithm;
  }
  if (!is_known) return base::invalid_argument("collective: algorithm is {}, wanted one of {}", algorithm, known);
  if (bytes < 1 || bytes > kMostBytes || options.splits < 1 || options.splits > 4096)
    return base::invalid_argument("collective: {} bytes in {} splits, wanted 1 to {} in 1 to 4096", bytes,
                                  options.splits, kMostBytes);
  Collectives run(network, options);
  const auto n = static_cast<uint64_t>((*groups)[0].size());
  const uint64_t block = base::ceil_div(bytes, n);
  const int passes = op == Collective::all_reduce ? 2 : 1;
  if (algorithm == "hierarchical")
    hierarchical_all_reduce(*groups, network.per_host, bytes, &run);
  else if (algorithm == "rail")
    rail_all_to_all(*groups, network.per_host, bytes, &run);
  else if (algorithm == "tree")
    run.tree((*groups)[0], bytes);
  else if (algorithm != "ring")
    for (int pass = 0; pass < passes; ++pass) run.direct(*groups, block);
  else if (op != Collective::all_to_all)
    run.ring_pass(*groups, block, passes * static_cast<int>(n - 1));
  else if (network.dims.size() > 1)
    return rings_of_torus(network, bytes, options);
  else
    run.ring_all_to_all((*groups)[0], block);
  CollectiveTime time = run.time();
  time.algorithm = algorithm;
  return time;
}

base::Result<CollectiveTime> best_collective(Collective op, const Network& network, uint64_t bytes,
                                             const CollectiveOptions& options, const Grouping& grouping) {
  CollectiveTime best;
  for (const std::string_view name : algorithms(op, network, grouping)) {
    const base::Result<CollectiveTime> time = run_collective(op, name, network, bytes, options, grouping);
    if (!time.ok()) return time;
    if (best.algorithm.empty() || time->us < best.us) best = *time;
  }
  return best;
}

base::Result<UnevenTime> all_to_all_uneven(const Network& network, const std::vector<uint64_t>& bytes,
                                           const Grouping& grouping, const CollectiveOptions& options) {
  const base::Result<Groups> groups = groups_of(network.ranks, grouping);
  if (!groups.ok()) return groups.status();
  const size_t n = (*groups)[0].size();
  if (bytes.size() != n * n || std::any_of(bytes.begin(), bytes.end(), [](uint64_t b) { return b > kMostBytes; }))
    return base::invalid_argument("all-to-all: {} sizes, wanted {} of at most {} bytes", bytes.size(), n * n,
                                  kMostBytes);
  std::vector<size_t> place(static_cast<size_t>(network.ranks));  // of a rank in its group
  for (const std::vector<int>& members : *groups)
    for (size_t i = 0; i < n; ++i) place[static_cast<size_t>(members[i])] = i;
  const auto at = [&](int rank) { return place[static_cast<size_t>(rank)]; };
  UnevenTime best;
  for (const std::string_view name : {"direct", "rail"}) {
    if (name == "rail" && !has_hosts(network, grouping)) continue;
    Collectives run(network, options);
    if (name == "direct") {
      run.exchange(*groups, [&](int from, int to) { return bytes[at(from) * n + at(to)]; });
    } else {
      const auto k = static_cast<size_t>(network.per_host);
      run.exchange(hosts_of(*groups, network.per_host), [&](int from, int to) {
        uint64_t sum = 0;  // all that goes to the receiver's rail
        for (size_t j = at(to) % k; j < n; j += k) sum += bytes[at(from) * n + j];
        return sum;
      });
      run.exchange(rails_of(*groups, network.per_host), [&](int from, int to) {
        uint64_t sum = 0;  // all that the sender's host has for the receiver
        for (size_t i = at(from) / k * k, end = i + k; i < end; ++i) sum += bytes[i * n + at(to)];
        return sum;
      });
    }
    UnevenTime time{std::vector<double>(n, 0), std::string(name)};
    for (const std::vector<int>& members : *groups)
      for (size_t i = 0; i < n; ++i) time.us[i] = std::max(time.us[i], sim::us_of_ps(run.done(members[i])));
    if (best.us.empty() || time.longest_us() < best.longest_us()) best = std::move(time);
  }
  return best;
}

base::Result<double> shift_us(const Network& network, int stride, uint64_t bytes) {
  if (stride < 1 || bytes > kMostBytes)
    return base::invalid_argument("shift: {} bytes by {} ranks, wanted at most {} by at least 1", bytes, stride,
                                  kMostBytes);
  Collectives run(network);
  sim::Time last = 0;
  for (int rank = 0; rank + stride < network.ranks; ++rank)
    last = std::max(last, run.message(rank, rank + stride, bytes));
  return sim::us_of_ps(last);
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
  if (has_hosts(network, {})) {
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

}  // namespace overlace::study
