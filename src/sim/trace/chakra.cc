#include "src/sim/trace/chakra.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "src/base/format.h"
#include "src/base/protobuf.h"
#include "src/base/trace_formats.h"

namespace overlace::sim {
namespace {

using base::Arrow;
using base::Span;
using base::Status;
using base::Trace;
using base::protobuf::append_varint;
using base::protobuf::Cursor;
using base::protobuf::kBytes;
using base::protobuf::kVarint;
using base::protobuf::Message;
using base::protobuf::take_varint;

// Field numbers of ChakraProtoMsg, message by message.
namespace field {
constexpr uint32_t kVersion = 1;
constexpr uint32_t kId = 1, kName = 2, kType = 3, kControlDeps = 4, kDataDeps = 5, kStart = 6, kDuration = 7,
                   kAttribute = 10;
constexpr uint32_t kAttributeName = 1, kInt32 = 7, kInt64 = 9, kUint32 = 11, kUint64 = 13, kBool = 27, kString = 29;
}  // namespace field

enum NodeType : uint64_t { kMetadata = 1, kComputation = 4, kSend = 5, kReceive = 6, kCollective = 7 };
constexpr uint64_t kMostNodeType = 10;
constexpr std::string_view kVersion = "0.0.4";
constexpr int64_t kMostNs = int64_t{1} << 60;

/// How a collective's name begins.
struct CollectiveName {
  std::string_view text;
  uint64_t type;
};
constexpr CollectiveName kCollectives[] = {
    {"all_reduce", 0}, {"all_gather", 2}, {"all_to_all", 6}, {"reduce_scatter", 7}, {"barrier", 9}};

std::optional<uint64_t> collective_type(const Span& span) {
  if (span.category != "collective") return std::nullopt;
  for (const CollectiveName& c : kCollectives)
    if (span.name.find(c.text) != std::string::npos) return c.type;
  return std::nullopt;
}

// ---- writing ----

class Writer {
 public:
  explicit Writer(const Trace& trace) : trace_(trace), origin_(base::trace_formats::earliest_ns(trace)) {
    int ranks = 0;
    for (const Span& span : trace.spans) ranks = std::max(ranks, span.rank + 1);
    for (const Arrow& arrow : trace.arrows) ranks = std::max({ranks, arrow.from_rank + 1, arrow.to_rank + 1});
    order_.resize(static_cast<size_t>(ranks));
    for (size_t i = 0; i < trace.spans.size(); ++i) order_[static_cast<size_t>(trace.spans[i].rank)].push_back(i);
    id_.resize(trace.spans.size());
    deps_.resize(trace.spans.size());
    signals_.resize(order_.size());
  }

  std::vector<std::string> write() {
    for (auto& list : order_) {
      std::stable_sort(list.begin(), list.end(),
                       [&](size_t a, size_t b) { return trace_.spans[a].begin_ns < trace_.spans[b].begin_ns; });
      std::map<std::string, size_t> last;
      for (size_t i = 0; i < list.size(); ++i) {
        const Span& span = trace_.spans[list[i]];
        lanes_[{span.rank, span.lane}].push_back(list[i]);
        id_[list[i]] = i;
        if (const auto before = last.find(span.lane); before != last.end()) deps_[list[i]].push_back(before->second);
        last[span.lane] = i;
      }
    }
    for (size_t i = 0; i < trace_.arrows.size(); ++i) tie(trace_.arrows[i], i);
    std::vector<std::string> files;
    for (size_t rank = 0; rank < order_.size(); ++rank) files.push_back(file(rank));
    return files;
  }

 private:
  struct Signal {
    const Arrow* arrow;
    size_t tag, after;  // after: a node of this rank, or none
    bool is_send;
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// The span of a lane that began last of those ended by then; begins_from(): the first that begins then or later.
  size_t ended_by(int rank, const std::string& lane, int64_t ns) const {
    const auto it = lanes_.find({rank, lane});
    if (it == lanes_.end()) return kNone;
    auto at = std::upper_bound(it->second.begin(), it->second.end(), ns,
                               [&](int64_t t, size_t i) { return t < trace_.spans[i].begin_ns; });
    while (at != it->second.begin())
      if (trace_.spans[*--at].end_ns <= ns) return *at;
    return kNone;
  }
  size_t begins_from(int rank, const std::string& lane, int64_t ns) const {
    const auto it = lanes_.find({rank, lane});
    if (it == lanes_.end()) return kNone;
    const auto at = std::lower_bound(it->second.begin(), it->second.end(), ns,
                                     [&](size_t i, int64_t t) { return trace_.spans[i].begin_ns < t; });
    return at == it->second.end() ? kNone : *at;
  }

  void tie(const Arrow& arrow, size_t tag) {
    const size_t from = ended_by(arrow.from_rank, arrow.from_lane, arrow.from_ns);
    const size_t to = begins_from(arrow.to_rank, arrow.to_lane, arrow.to_ns);
    if (arrow.from_rank == arrow.to_rank) {
      // A dependence points back in time; else it would make a circle.
      if (from != kNone && to != kNone && id_.at(from) < id_.at(to)) deps_[to].push_back(id_.at(from));
      return;
    }
    signals_[static_cast<size_t>(arrow.from_rank)].push_back({&arrow, tag, from == kNone ? kNone : id_.at(from), true});
    auto& theirs = signals_[static_cast<size_t>(arrow.to_rank)];
    theirs.push_back({&arrow, tag, kNone, false});
    if (to != kNone) deps_[to].push_back(order_[static_cast<size_t>(arrow.to_rank)].size() + theirs.size() - 1);
  }

  static Message attribute(std::string_view name, uint32_t number, uint64_t value) {
    return Message().bytes(field::kAttributeName, name).varint(number, value);
  }
  static Message attribute(std::string_view name, std::string_view value) {
    return Message().bytes(field::kAttributeName, name).bytes(field::kString, value);
  }
  static void append(std::string* file, const Message& message) {
    append_varint(file, message.text().size());
    *file += message.text();
  }
  Message node(uint64_t id, std::string_view name, NodeType type, const std::vector<size_t>& deps, int64_t begin_ns,
               int64_t duration_ns) const {
    Message out = Message().varint(field::kId, id).bytes(field::kName, name).varint(field::kType, type);
    std::string packed;
    std::vector<size_t> unique = deps;
    std::sort(unique.begin(), unique.end());
    unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
    for (const size_t dep : unique) append_varint(&packed, dep);
    if (!packed.empty()) out.bytes(field::kDataDeps, packed);
    const auto start = static_cast<uint64_t>(begin_ns - origin_), duration = static_cast<uint64_t>(duration_ns);
    out.varint(field::kStart, start / 1000).varint(field::kDuration, (duration + 500) / 1000);
    out.message(field::kAttribute, attribute("is_cpu_op", field::kBool, 0));
    out.message(field::kAttribute, attribute("start_ns", field::kUint64, start));
    return out.message(field::kAttribute, attribute("duration_ns", field::kUint64, duration));
  }

  std::string file(size_t rank) const {
    std::string out;
    append(&out, Message().bytes(field::kVersion, kVersion));
    const auto bytes_of = [](const Span& span) { return static_cast<uint64_t>(std::max<int64_t>(span.bytes, 0)); };
    for (const size_t i : order_[rank]) {
      const Span& span = trace_.spans[i];
      const std::optional<uint64_t> collective = collective_type(span);
      Message message = node(id_.at(i), span.name, collective ? kCollective : kComputation, deps_[i], span.begin_ns,
                             span.end_ns - span.begin_ns);
      if (collective) {
        message.message(field::kAttribute, attribute("comm_type", field::kInt64, *collective));
        message.message(field::kAttribute, attribute("comm_size", field::kInt64, bytes_of(span)));
      } else {
        const auto operations = span.flops > 0 && span.flops < 9e18 ? static_cast<uint64_t>(span.flops) : 0;
        message.message(field::kAttribute, attribute("num_ops", field::kInt64, operations));
        message.message(field::kAttribute, attribute("tensor_size", field::kUint64, bytes_of(span)));
      }
      message.message(field::kAttribute, attribute("lane", span.lane));
      message.message(field::kAttribute, attribute("category", span.category));
      append(&out, message);
    }
    size_t id = order_[rank].size();
    for (const Signal& signal : signals_[rank]) {
      const Arrow& a = *signal.arrow;
      const std::vector<size_t> deps(signal.after == kNone ? 0 : 1, signal.after);
      Message message =
          node(id++, a.name, signal.is_send ? kSend : kReceive, deps, signal.is_send ? a.from_ns : a.to_ns, 0);
      const auto rank_attribute = [&](const char* name, int value) {
        message.message(field::kAttribute, attribute(name, field::kInt32, static_cast<uint64_t>(value)));
      };
      message.message(field::kAttribute, attribute("comm_size", field::kInt64, 4));
      rank_attribute("comm_src", a.from_rank);
      rank_attribute("comm_dst", a.to_rank);
      rank_attribute("comm_tag", static_cast<int>(signal.tag));
      message.message(field::kAttribute, attribute("signal_lane", signal.is_send ? a.from_lane : a.to_lane));
      append(&out, message);
    }
    return out;
  }

  const Trace& trace_;
  int64_t origin_;
  std::vector<std::vector<size_t>> order_;  // by rank: spans by begin; a span's place is its node's id
  std::vector<size_t> id_;                  // by span
  std::vector<std::vector<size_t>> deps_;   // by span: ids
  std::vector<std::vector<Signal>> signals_;
  std::map<std::pair<int, std::string>, std::vector<size_t>> lanes_;
};

// ---- reading ----

struct Node {
  uint64_t id = 0, type = 0;
  std::string name, lane, category, signal_lane;
  std::vector<uint64_t> deps;
  std::optional<int64_t> begin_ns;
  int64_t duration_ns = 0, bytes = 0, from = -1, to = -1, tag = -1;
  double flops = 0;
};

class Reader {
 public:
  Reader(std::string_view source, int rank) : where_(base::format("{}: rank {}", source, rank)) {}

  base::Result<std::vector<Node>> read(std::string_view rest) {
    std::vector<Node> nodes;
    bool is_first = true;
    while (!rest.empty()) {
      uint64_t length = 0;
      if (!take_varint(&rest, &length) || length > rest.size()) return fail(nodes.size(), "a length beyond the end");
      const std::string_view message = rest.substr(0, length);
      rest.remove_prefix(length);
      if (is_first) {
        OVERLACE_TRY(read_metadata(message));
      } else {
        base::Result<Node> node = read_node(message, nodes.size());
        if (!node.ok()) return node.status();
        if (node->type != kMetadata) nodes.push_back(std::move(*node));
      }
      is_first = false;
    }
    if (is_first) return base::error(Errc::corrupt, "{}: an empty file, wanted a Chakra trace", where_);
    return nodes;
  }

 private:
  Status fail(size_t node, std::string_view why) const {
    return base::error(Errc::corrupt, "{}: Chakra node {}: {}", where_, node, why);
  }

  Status read_metadata(std::string_view bytes) const {
    std::string version;
    for (Cursor c(bytes); !c.at_end();) {
      if (const char* why = c.next()) return base::error(Errc::corrupt, "{}: Chakra metadata: {}", where_, why);
      if (c.is(field::kVersion, kBytes)) version = c.bytes();
    }
    if (!version.starts_with("0.0."))
      return base::error(Errc::corrupt, "{}: Chakra version is \"{}\", wanted 0.0.x", where_, version.substr(0, 40));
    return {};
  }

  base::Result<Node> read_node(std::string_view bytes, size_t index) const {
    Node node;
    uint64_t start_us = 0, duration_us = 0;
    std::vector<std::string_view> attributes;
    for (Cursor c(bytes); !c.at_end();) {
      if (const char* why = c.next()) return fail(index, why);
      if (c.is(field::kId, kVarint)) node.id = c.value();  // proto3 leaves out a zero
      if (c.is(field::kName, kBytes)) node.name = c.bytes();
      if (c.is(field::kType, kVarint)) node.type = c.value();
      if (c.is(field::kStart, kVarint)) start_us = c.value();
      if (c.is(field::kDuration, kVarint)) duration_us = c.value();
      if (c.is(field::kAttribute, kBytes)) attributes.push_back(c.bytes());
      if (c.number() != field::kControlDeps && c.number() != field::kDataDeps) continue;
      if (c.is(c.number(), kVarint)) node.deps.push_back(c.value());
      if (!c.is(c.number(), kBytes)) continue;
      for (std::string_view packed = c.bytes(); !packed.empty();)
        if (!take_varint(&packed, &node.deps.emplace_back())) return fail(index, "bad packed dependences");
    }
    if (node.type == 0 || node.type > kMostNodeType)
      return fail(index, base::format("type is {}, wanted 1 to {}", node.type, kMostNodeType));
    constexpr auto kMostUs = static_cast<uint64_t>(kMostNs / 1000);
    if (start_us > kMostUs || duration_us > kMostUs) return fail(index, "a time is out of range");
    node.duration_ns = static_cast<int64_t>(duration_us) * 1000;
    if (start_us > 0) node.begin_ns = static_cast<int64_t>(start_us) * 1000;
    for (const std::string_view attribute : attributes) OVERLACE_TRY(read_attribute(attribute, index, &node));
    return node;
  }

  Status read_attribute(std::string_view bytes, size_t index, Node* node) const {
    std::string_view name, text;
    int64_t value = 0;
    bool is_beyond = false;
    for (Cursor c(bytes); !c.at_end();) {
      if (const char* why = c.next()) return fail(index, why);
      if (c.is(field::kAttributeName, kBytes)) name = c.bytes();
      if (c.is(field::kString, kBytes)) text = c.bytes();
      if (c.is(field::kInt32, kVarint)) value = static_cast<int32_t>(static_cast<uint32_t>(c.value()));
      if (c.is(field::kUint32, kVarint)) value = static_cast<uint32_t>(c.value());
      if (c.is(field::kInt64, kVarint) || c.is(field::kUint64, kVarint)) value = static_cast<int64_t>(c.value());
      is_beyond = is_beyond || (c.is(field::kUint64, kVarint) && value < 0);
    }
    if (name == "lane") node->lane = text;
    if (name == "category") node->category = text;
    if (name == "signal_lane") node->signal_lane = text;
    int64_t* const whole = name == "duration_ns"                          ? &node->duration_ns
                           : name == "comm_size" || name == "tensor_size" ? &node->bytes
                           : name == "comm_src"                           ? &node->from
                           : name == "comm_dst"                           ? &node->to
                           : name == "comm_tag"                           ? &node->tag
                                                                          : nullptr;
    const bool is_start = name == "start_ns", is_flops = name == "num_ops";
    if (whole == nullptr && !is_start && !is_flops) return {};
    if (value < 0 && !is_beyond && name.starts_with("comm_")) return {};  // others' word for none
    if (is_beyond || value < 0 || value > kMostNs)
      return fail(index,
                  base::format("{} is {}, wanted 0 to {}", name,
                               is_beyond ? base::format("{}", static_cast<uint64_t>(value)) : base::format("{}", value),
                               kMostNs));
    if (whole != nullptr) *whole = value;
    if (is_start) node->begin_ns = value;
    if (is_flops) node->flops = static_cast<double>(value);
    return {};
  }

  std::string where_;
};

std::string lane_of(const Node& node) {
  if (!node.lane.empty()) return node.lane;
  return node.type == kComputation ? "compute" : "comm";
}

/// Places of the nodes by id; dependences in place of ids. In an order in which each comes behind what it depends on.
struct Ordered {
  std::vector<size_t> order;
  std::vector<std::vector<size_t>> deps;  // by node
};
base::Result<Ordered> ordered(const std::vector<Node>& nodes, const std::string& where) {
  std::unordered_map<uint64_t, size_t> place;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!place.emplace(nodes[i].id, i).second)
      return base::error(Errc::corrupt, "{}: Chakra node {}: its id {} is taken", where, i, nodes[i].id);
  Ordered out;
  out.deps.resize(nodes.size());
  std::vector<std::vector<size_t>> next(nodes.size());
  std::vector<size_t> missing(nodes.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const uint64_t dep : nodes[i].deps) {
      const auto it = place.find(dep);
      if (it == place.end())
        return base::error(Errc::corrupt, "{}: Chakra node {}: depends on node {}, which is not there", where, i, dep);
      out.deps[i].push_back(it->second);
      next[it->second].push_back(i);
      ++missing[i];
    }
  for (size_t i = 0; i < nodes.size(); ++i)
    if (missing[i] == 0) out.order.push_back(i);
  for (size_t done = 0; done < out.order.size(); ++done)
    for (const size_t i : next[out.order[done]])
      if (--missing[i] == 0) out.order.push_back(i);
  if (out.order.size() != nodes.size())
    return base::error(Errc::corrupt, "{}: {} of {} Chakra nodes depend on each other in a circle", where,
                       nodes.size() - out.order.size(), nodes.size());
  return out;
}

/// Ends of signals between ranks, by (from, to, tag).
using Halves = std::map<std::tuple<int64_t, int64_t, int64_t>, std::pair<std::optional<Arrow>, std::optional<Arrow>>>;

Status add_rank(std::vector<Node> nodes, int rank, std::string_view source, Trace* trace, Halves* halves) {
  const std::string where = base::format("{}: rank {}", source, rank);
  const base::Result<Ordered> order = ordered(nodes, where);
  if (!order.ok()) return order.status();
  const bool is_timed = std::any_of(nodes.begin(), nodes.end(), [](const Node& n) { return n.begin_ns.has_value(); });
  std::map<std::string, int64_t> free_at;
  for (const size_t i : order->order) {
    Node& node = nodes[i];
    int64_t begin = is_timed ? node.begin_ns.value_or(0) : 0;
    if (!is_timed) {
      begin = free_at[lane_of(node)];
      for (const size_t dep : order->deps[i]) begin = std::max(begin, *nodes[dep].begin_ns + nodes[dep].duration_ns);
    }
    node.begin_ns = begin;
    if (begin > kMostNs || node.duration_ns > kMostNs || begin + node.duration_ns > kMostNs)
      return base::error(Errc::corrupt, "{}: Chakra node {}: ends after {} ns", where, i, kMostNs);
    free_at[lane_of(node)] = begin + node.duration_ns;
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (!node.signal_lane.empty()) {
      Arrow half{.name = node.name,
                 .from_rank = rank,
                 .from_lane = node.signal_lane,
                 .from_ns = *node.begin_ns,
                 .to_rank = rank,
                 .to_lane = node.signal_lane,
                 .to_ns = *node.begin_ns};
      auto& both = (*halves)[{node.from, node.to, node.tag}];
      (node.type == kSend ? both.first : both.second) = std::move(half);
      continue;
    }
    const std::string kind = node.type == kCollective ? "collective" : node.type == kComputation ? "other" : "copy";
    trace->spans.push_back({rank, lane_of(node), node.name, node.category.empty() ? kind : node.category,
                            *node.begin_ns, *node.begin_ns + node.duration_ns, node.bytes, node.flops});
    for (const size_t dep : order->deps[i]) {
      const Node& from = nodes[dep];
      if (!from.signal_lane.empty() || lane_of(from) == lane_of(node)) continue;
      trace->arrows.push_back(
          {from.name, rank, lane_of(from), *from.begin_ns + from.duration_ns, rank, lane_of(node), *node.begin_ns});
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> to_chakra(const Trace& trace) { return Writer(trace).write(); }

base::Result<Trace> from_chakra(const std::vector<std::string>& files, std::string_view source) {
  Trace trace;
  trace.title = std::string(source);
  Halves halves;
  for (size_t rank = 0; rank < files.size(); ++rank) {
    if (rank > static_cast<size_t>(base::trace_formats::kMaxRank))
      return base::error(Errc::corrupt, "{}: {} ranks, wanted at most {}", source, files.size(),
                         base::trace_formats::kMaxRank + 1);
    base::Result<std::vector<Node>> nodes = Reader(source, static_cast<int>(rank)).read(files[rank]);
    if (!nodes.ok()) return nodes.status();
    OVERLACE_TRY(add_rank(std::move(*nodes), static_cast<int>(rank), source, &trace, &halves));
  }
  for (auto& [key, both] : halves) {
    if (!both.first || !both.second) continue;  // the other rank's file is not there
    Arrow arrow = std::move(*both.first);
    arrow.to_rank = both.second->to_rank;
    arrow.to_lane = both.second->to_lane;
    arrow.to_ns = both.second->to_ns;
    trace.arrows.push_back(std::move(arrow));
  }
  return trace;
}

}  // namespace overlace::sim
