// Operators over ranks on several hosts.
#include "src/base/format.h"
#include "src/runtime/hash.h"
#include "tests/ranks/embedding_case.h"
#include "tests/ranks/net/body.h"
#include "tests/ranks/ops_cases.h"
#include "tests/unit/spec/operators.h"

namespace overlace::test {
namespace {

TEST(Operator, EveryScheduleGivesTheExactResultInEachOfRepeatedCalls) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  Team& team = runtime.world();
  int far = 0;
  for (int peer = 0; peer < team.size(); ++peer) far += team.reach(peer) == Reach::net ? 1 : 0;
  EXPECT_EQ(std::to_string(far), parameters()["far"]);
  Channel& channel = team.channel(StreamRef::cpu());
  for (const std::string& op : test::all_operators()) {
    run_cases(runtime, channel, cases_of(op, team.size()));
    if (spec::exchanges(op)) run_cases(runtime, channel, column_cases_of(op, team.size()));
  }
  runtime.synchronize();
  team.barrier();
  runtime.check_quiescent();
  runtime.close();
}

/// Logs a hash of each result, to be compared with what the same ranks on one host log.
TEST(Operator, Bits) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  Channel& channel = runtime.world().channel(StreamRef::cpu());
  std::string lines;
  const int ranks = runtime.world().size();
  const auto add_line = [&](const std::string& what, const std::vector<char>& bytes) {
    lines += base::format("bits {} rank {} {:016x}\n", what, runtime.world().rank(),
                          runtime::hash_text({bytes.data(), bytes.size()}));
  };
  const auto add = [&](const Case& c) {
    Operands operands(c, channel);
    operands.fill_normal(7);
    operands.run();
    add_line(base::format("{} {}{}", c.op, c.family, c.cols ? " cols" : ""), operands.out().bytes());
  };
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar", "gemm_a2a", "a2a_gemm"}) {
    for (const std::string& family : spec::families(op)) {
      if (family == "compute" || family == "comm" || family == "limit") continue;
      Case c{.op = op, .family = family, .degree = 2, .m = 37, .n = 24, .k = 19, .in = DType::bf16, .out = DType::bf16};
      if (family == "hierarchical") c.options["hosts"] = int64_t{2};  // its sums are in their order
      if (spec::exchanges(op)) c.splits = drawn_splits(ranks, c.m, 5);
      add(c);
      if (!spec::exchanges(op)) continue;
      exchange_columns(&c, ranks, 5);  // three blocks
      add(c);
    }
  }
  const BagVariant means{.mode = "mean", .dtype = DType::bf16, .out_dtype = DType::bf16};  // which are rounded
  for (const std::string& family : spec::families("embedding_a2a")) {
    const spec::Schedule schedule = spec::make_schedule(bag_problem(ranks, 37, means), family, 2);
    if (!spec::gives_result(schedule)) continue;
    BagCall call(channel, schedule, means);
    EXPECT_EQ(call.run(7), "") << family;
    add_line("embedding_a2a " + family, call.bytes());
  }
  runtime.close();
  print_to_log(lines);
}

TEST(Operator, WhatDoesNotReachOtherHosts) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  Team& team = runtime.world();
  const ChannelPod& pod = team.channel(StreamRef::cpu()).pod();
  const int far = (team.rank() + team.size() / 2) % team.size();
  EXPECT_TRUE(runtime.is_emulated());  // hosts of one machine
  const SymBuffer buffer = runtime.heap().alloc(64);
  ASSERT_EQ(team.reach(far), Reach::net);
  EXPECT_EQ(team.peer_ptr(buffer, far), nullptr);
  EXPECT_NE(team.local_ptr(buffer), nullptr);
  EXPECT_FALSE(runtime.caps(far).load_store);
  char byte = 0;
  const auto text_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(text_of([&] { (void)get(pod, far, buffer.offset, &byte, 1); }).find("is on another host"),
            std::string::npos);
  const std::vector<StripePart> parts = {{0, 4096}};
  EXPECT_NE(text_of([&] { (void)runtime.heap().stripe(parts, "s"); }).find("is on another host"), std::string::npos);
  runtime.close();
}

/// All pairs, sizes and pitches; words; the order of a put and its signal; quiescence.
TEST(Put, AllPairsAndSizes) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  Team& team = runtime.world();
  Channel& channel = team.channel(StreamRef::cpu());
  const ChannelPod& pod = channel.pod();
  const SignalIds ids = channel.ids(2, Domain::cpu, "test.put");
  constexpr size_t kMost = 300000;
  const SymBuffer inbox = runtime.heap().alloc(kMost * static_cast<size_t>(team.size()));
  const SymBuffer words = runtime.heap().alloc(8 * static_cast<size_t>(team.size()));
  team.barrier();  // fresh memory may be filled with a pattern
  const auto pattern = [](int from, int to, size_t i) {
    return static_cast<char>(from * 59 + to * 17 + i * 7 + i / 253);
  };
  const auto place = [&](int from) { return inbox.offset + static_cast<uint64_t>(from) * kMost; };
  uint32_t epoch = 0;
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{4096}, kMost - 3}) {
    ++epoch;
    std::vector<std::vector<char>> source(static_cast<size_t>(team.size()), std::vector<char>(bytes));
    for (int to = 0; to < team.size(); ++to) {
      std::vector<char>& data = source[static_cast<size_t>(to)];
      for (size_t i = 0; i < bytes; ++i) data[i] = pattern(team.rank(), to, i + epoch);
      put_signal(pod, to, place(team.rank()) + 3, data.data(), bytes, ids.first);
      put_word_release(pod, to, words.offset + 8 * static_cast<uint64_t>(team.rank()), (uint64_t{epoch} << 32) | 5);
    }
    ASSERT_EQ(flush(pod), Errc::ok);
    for (int from = 0; from < team.size(); ++from) {
      ASSERT_EQ(wait_ge(pod, from, ids.first, ticket(pod, from, ids.first) + 1), Errc::ok);
      consume(pod, from, ids.first, 1);
      const char* data = static_cast<char*>(team.local_ptr(inbox)) + static_cast<size_t>(from) * kMost + 3;
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], pattern(from, team.rank(), i + epoch)) << from << " " << i;
      uint32_t low = 0;
      ASSERT_EQ(wait_word(pod, words.offset + 8 * static_cast<uint64_t>(from), epoch, &low), Errc::ok);
      EXPECT_EQ(low, 5u);
    }
    ASSERT_EQ(barrier(pod), Errc::ok);
  }
  // Rows with pitches, several on their way and counted by one signal.
  std::vector<char> rows(40 * 50, static_cast<char>(team.rank() + 1));
  for (int to = 0; to < team.size(); ++to) {
    for (int k = 0; k < 3; ++k)
      put_2d(pod, to, place(team.rank()) + static_cast<uint64_t>(k) * 10, 100, rows.data(), 50, 10, 40);
    fence(pod, to);
    signal_add(pod, to, ids.first + 1, 3);
  }
  for (int from = 0; from < team.size(); ++from) {
    ASSERT_EQ(wait_ge(pod, from, ids.first + 1, 3), Errc::ok);
    consume(pod, from, ids.first + 1, 3);
    const char* data = static_cast<char*>(team.local_ptr(inbox)) + static_cast<size_t>(from) * kMost;
    for (size_t i = 0; i < 40; ++i)
      for (size_t j = 0; j < 30; ++j) ASSERT_EQ(data[i * 100 + j], from + 1) << from << " " << i << " " << j;
  }
  EXPECT_EQ(quiet(pod), Errc::ok);
  runtime.synchronize();
  team.barrier();
  runtime.check_quiescent();
  runtime.close();
}

}  // namespace
}  // namespace overlace::test
