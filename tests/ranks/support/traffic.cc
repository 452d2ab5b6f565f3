#include "tests/ranks/support/traffic.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "overlace/net_engine.h"
#include "src/base/format.h"

namespace overlace::test {
namespace {

constexpr size_t kKnown = 12;  // calls that a channel keeps to make again
constexpr size_t kBlocks = 4;  // of the heap, held at a time
constexpr size_t kBlockBytes = 4096;
const StreamRef kCpu = StreamRef::cpu();

std::vector<int> every_other(int size, int first) {
  std::vector<int> ranks;
  for (int r = first; r < size; r += 2) ranks.push_back(r);
  return ranks;
}

std::vector<int> turned(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back((r + 1) % size);
  return ranks;
}

/// A left operand as a caller gets it wrong.
TensorView spoilt(TensorView view, int64_t how) {
  if (how == 0) view.dtype = DType::i32;
  if (how == 1) view.ndim = 1;
  if (how == 2) ++view.sizes[1];
  return view;
}

}  // namespace

Traffic::Traffic(Runtime& runtime, uint64_t seed, const Families& families)
    : runtime_(runtime),
      families_(families),
      dice_(seed),
      own_dice_(seed * 64 + static_cast<uint64_t>(runtime.world().rank()) + 1) {
  Team& world = runtime.world();
  teams_ = {world, world.sub(turned(world.size()), {.name = "turned"})};
  for (const int first : {0, 1}) {
    if (first >= world.size()) continue;
    const Team half = world.sub(every_other(world.size(), first), {.name = "half"});
    if (half.size() > 0) teams_.push_back(half);
  }
  for (const int budget : {0, 1, 2}) roads_.push_back({&world.channel(kCpu, {.sm_budget = budget})});
  roads_.push_back({&teams_[1].channel(kCpu)});
}

std::string Traffic::step() {
  const std::pair<int64_t, std::string (Traffic::*)()> kinds[] = {
      {36, &Traffic::call_new},
      {40, &Traffic::call_known},
      {12, &Traffic::collective},
      {4, &Traffic::block},
      {2, &Traffic::call_that_one_rank_refuses},
      {2, &Traffic::call_that_ranks_make_differently},
      {2, &Traffic::call_of_a_known_shape_refused_here},
      {2, &Traffic::call_beyond_the_heap},
  };
  hesitate();
  int64_t left = dice_.number(1, 100);
  for (const auto& [weight, kind] : kinds) {
    left -= weight;
    if (left <= 0) return (this->*kind)();
  }
  return "the weights of the kinds of steps do not add up to 100";
}

void Traffic::hesitate() {
  if (!own_dice_.one_in(6)) return;
  const int64_t us = own_dice_.one_in(60) ? 3000 : own_dice_.number(1, 200);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

void Traffic::settle() {
  Team& world = runtime_.world();
  runtime_.synchronize();
  world.agree(ends_, "ends of the calls");
  ends_.clear();
  runtime_.check_quiescent();
  runtime_.heap().verify();
  world.barrier();  // nobody signals again before all have looked
}

std::string Traffic::outcome(Operands& operands, std::string* text) {
  text->clear();
  try {
    operands.run();
  } catch (const Error& error) {
    *text = error.what();
    return std::string(errc_name(error.code()));
  }
  return "ok";
}

std::string Traffic::call(Operands& operands) {
  std::string text;
  operands.fill(++calls_);
  const std::string end = outcome(operands, &text);
  operands.spoil_inputs();  // they are ours again: nobody may still read them
  ends_ += end + " ";
  if (end == "ok") {
    ++counts_["call: right"];
    return operands.mismatch();
  }
  if (end != errc_name(Errc::heap_exhausted)) return end + ": " + text;
  const bool is_small = ops::heap_bytes(operands.problem(), operands.schedule()) <= runtime_.heap().capacity() / 2;
  ++counts_[is_small ? "call: no heap left by other channels" : "call: larger than the heap"];
  return "";
}

std::string Traffic::call_new() {
  Road& on = road();
  const Case what = draw_case(dice_, on.channel->team().size(), families_);
  auto operands = std::make_unique<Operands>(what, *on.channel);
  const ops::Support support = ops::supports(*on.channel, operands->problem(), operands->schedule());
  if (!support.ok()) return what.text() + ": " + support.reason;
  asked_bytes_ += ops::heap_bytes(operands->problem(), operands->schedule());
  ++counts_["family: " + what.op + " " + what.family];
  const std::string wrong = call(*operands);
  if (on.known.size() < kKnown) {
    on.known.push_back(std::move(operands));
  } else {
    on.known[index(kKnown)] = std::move(operands);
  }
  return wrong;
}

std::string Traffic::call_known() {
  Road& on = road();
  if (on.known.empty()) return call_new();
  Operands& operands = *on.known[index(on.known.size())];
  const int64_t times = dice_.one_in(4) ? 3 : 1;  // behind each other
  for (int64_t i = 0; i < times; ++i) {
    if (const std::string wrong = call(operands); !wrong.empty()) return wrong;
  }
  return "";
}

Case Traffic::fresh(int ranks) {
  Case what = draw_case(dice_, ranks, families_);
  set_rows(&what, ranks, next_fresh_m_++);
  if (what.k < 2) set_columns(&what, ranks, what.n, 2);
  return what;
}

std::string Traffic::call_that_one_rank_refuses() {
  Road& on = road();
  const Team& team = on.channel->team();
  const Case what = fresh(team.size());
  const int bad = static_cast<int>(index(static_cast<size_t>(team.size())));
  const int64_t how = dice_.number(0, 2);
  Operands operands(what, *on.channel);
  const TensorView right = operands.a();
  operands.fill(++calls_);
  if (team.rank() == bad) operands.set_a(spoilt(right, how));
  std::string text;
  const std::string end = outcome(operands, &text);
  const bool is_told = text.find(base::format("rank {} refused the call", bad)) != std::string::npos;
  ++counts_["refused by one rank: " + end];
  if (end != errc_name(Errc::invalid_argument) || is_told != (team.rank() != bad))
    return base::format("{}: rank {} gave a wrong a ({}), rank {} got {}: {}", what.text(), bad, how, team.rank(), end,
                        text);
  operands.set_a(right);
  return call(operands);
}

std::string Traffic::call_that_ranks_make_differently() {
  Road& on = road();
  const Team& team = on.channel->team();
  if (team.size() == 1) return call_new();
  const Case what = fresh(team.size());
  Case other = what;
  set_rows(&other, team.size(), next_fresh_m_++);
  const auto odd = static_cast<int>(index(static_cast<size_t>(team.size())));
  Operands different(team.rank() == odd ? other : what, *on.channel);
  different.fill(++calls_);
  std::string text;
  const std::string end = outcome(different, &text);
  ++counts_["made differently: " + end];
  if (end != errc_name(Errc::plan_mismatch))
    return base::format("{}: rank {} has M {}, rank {} got {}: {}", what.text(), odd, other.m, team.rank(), end, text);
  Operands same(what, *on.channel);
  return call(same);
}

std::string Traffic::call_of_a_known_shape_refused_here() {
  Road& on = road();
  if (on.known.empty()) return call_new();
  Operands& operands = *on.known[index(on.known.size())];
  const auto bad = static_cast<int>(index(static_cast<size_t>(on.channel->team().size())));
  const int64_t how = dice_.number(0, 1);
  if (const std::string wrong = call(operands); !wrong.empty()) return wrong;
  const bool has_run = ends_.ends_with("ok ");
  if (has_run && on.channel->team().rank() == bad) {  // the others make no call at all
    const TensorView right = operands.a();
    operands.set_a(spoilt(right, how));
    std::string text;
    const std::string end = outcome(operands, &text);
    operands.set_a(right);
    ++counts_["refused where it is known: " + end];
    if (end != errc_name(Errc::invalid_argument))
      return base::format("{}: a wrong a ({}) ended with {}: {}", operands.what().text(), how, end, text);
  }
  return call(operands);
}

std::string Traffic::call_beyond_the_heap() {
  Road& on = road();
  Case what = fresh(on.channel->team().size());
  set_rows(&what, on.channel->team().size(), what.m + 4096);
  set_columns(&what, on.channel->team().size(), 16, 2);
  Operands operands(what, *on.channel);
  const bool fits = ops::heap_bytes(operands.problem(), operands.schedule()) <= runtime_.heap().capacity();
  const std::string wrong = call(operands);
  ++counts_[fits ? "large: fits" : "large: does not fit"];
  if (wrong.empty() && !fits && ends_.ends_with("ok "))
    return what.text() + ": took more than the heap has, and nobody minded";
  return wrong;
}

std::string Traffic::collective() {
  Team& team = teams_[index(teams_.size())];
  NetEngine& net = *team.net();
  const auto ranks = static_cast<size_t>(team.size()), rank = static_cast<size_t>(team.rank());
  const int64_t kind = dice_.number(0, 3);
  const auto count = static_cast<size_t>(dice_.one_in(12) ? 20000 : dice_.number(0, 300));
  const int64_t number = ++calls_;
  const auto value = [&](size_t r, size_t i) {
    return static_cast<float>(hashed(9, static_cast<int64_t>(r), static_cast<int64_t>(i), kind, number, DType::fp32));
  };
  const auto sum = [&](size_t i) {
    float total = 0;
    for (size_t r = 0; r < ranks; ++r) total += value(r, i);
    return total;
  };
  std::vector<float> send(count * ranks), recv(count * ranks, NAN);
  for (size_t i = 0; i < send.size(); ++i) send[i] = value(rank, i);
  if (kind == 0) net.all_gather(send.data(), recv.data(), count, DType::fp32, kCpu);
  if (kind == 1) net.reduce_scatter(send.data(), recv.data(), count, DType::fp32, kCpu);
  if (kind == 2) net.all_reduce(send.data(), recv.data(), count, DType::fp32, kCpu);
  if (kind == 3) net.all_to_all(send.data(), recv.data(), count, DType::fp32, kCpu);
  ++counts_["collective of team " + team.name()];
  const size_t got = kind == 0 || kind == 3 ? count * ranks : count;
  for (size_t i = 0; i < got; ++i) {
    const float want = kind == 0   ? value(i / count, i % count)
                       : kind == 1 ? sum(rank * count + i)
                       : kind == 2 ? sum(i)
                                   : value(i / count, rank * count + i % count);
    if (recv[i] != want)
      return base::format("collective {} of team {}, {} elements: [{}] is {}, wanted {}", kind, team.name(), count, i,
                          recv[i], want);
  }
  return "";
}

std::string Traffic::block() {
  const bool takes = blocks_.empty() || (blocks_.size() < kBlocks && dice_.one_in(2));
  if (takes) {
    const auto bytes = static_cast<size_t>(dice_.number(1, kBlockBytes));
    const auto value = static_cast<uint8_t>(dice_.number(1, 250) + runtime_.world().rank());
    try {
      blocks_.push_back({runtime_.heap().alloc(bytes, 256, "of the caller"), value});
    } catch (const OutOfMemory&) {  // as full as calls have made it
      ++counts_["block: none left"];
      return "";
    }
    std::memset(runtime_.world().local_ptr(blocks_.back().memory), value, blocks_.back().memory.bytes);
    ++counts_["block: taken"];
    return "";
  }
  const Block gone = blocks_[index(blocks_.size())];
  std::erase_if(blocks_, [&](const Block& b) { return b.memory.offset == gone.memory.offset; });
  const auto* bytes = static_cast<const uint8_t*>(runtime_.world().local_ptr(gone.memory));
  for (size_t i = 0; i < gone.memory.bytes; ++i) {
    if (bytes[i] != gone.value)
      return base::format("byte {} of a block of {} at {} is {}, wanted {}: somebody wrote into it", i,
                          gone.memory.bytes, gone.memory.offset, bytes[i], gone.value);
  }
  runtime_.heap().free(gone.memory);
  return "";
}

}  // namespace overlace::test
