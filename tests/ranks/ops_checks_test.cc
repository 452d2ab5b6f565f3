// Every precondition of the dense operators: the error's type, and the argument, the value got and the value wanted in
// its text. All ranks make the same bad call; afterwards a good one succeeds, for nothing has moved.
#include <functional>
#include <utility>

#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

/// What a call throws, as "code: text"; "ok" if nothing.
std::string thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return std::string(errc_name(e.code())) + ": " + e.what();
  }
  return "ok";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << text;
  }
}

/// A good call of two ranks, to be spoilt.
struct AgCall {
  explicit AgCall(Channel& c, int64_t n = 5, const char* family = "hetero_fused_1d")
      : channel(c),
        rank(c.team().rank()),
        a(4, 6, DType::fp32, 0),
        b(n, 6, DType::fp32, 0),
        out(8, n, DType::fp32, 0),
        bias(1, 5, DType::fp32, 0),
        gathered(8, 6, DType::fp32, 0),
        args{.a_shard = a.view, .b = b.view.transposed(), .c = out.view} {
    a.fill([](int64_t, int64_t) { return 1.0; });
    b.fill([](int64_t, int64_t) { return 1.0; });
    schedule = spec::make_schedule(ops::op_spec(channel, args), family, 2);
  }
  std::string call() const {
    return thrown([&] { ops::run(channel, args, schedule); });
  }
  Channel& channel;
  int rank;
  Matrix a, b, out, bias, gathered;
  ops::AgGemmArgs args;
  spec::Schedule schedule;
};

void expect_good(Channel& channel, int64_t n = 5, const char* family = "hetero_fused_1d") {
  const AgCall good(channel, n, family);
  EXPECT_EQ(good.call(), "ok");
  EXPECT_EQ(good.out.get(7, 4), 6);
}

void check_ag_gemm(Channel& channel) {
  const auto spoilt = [&](const std::function<void(AgCall&)>& spoil) {
    AgCall call(channel);
    spoil(call);
    return call.call() + " ";
  };
  const std::string rank = "rank " + std::to_string(channel.team().rank()) + " ";
  const auto expect = [&](std::initializer_list<const char*> parts, const std::function<void(AgCall&)>& spoil) {
    const std::string text = spoilt(spoil);
    expect_parts(text, parts);
    expect_parts(text, {"ag_gemm", rank.c_str()});
  };
  expect({"invalid_argument", "a_shard must have 2 dimensions, got 0"}, [](AgCall& c) { c.args.a_shard = {}; });
  expect({"invalid_argument", "a_shard must be fp32, bf16, fp16, e4m3, e5m2 or fp64, got i32"},
         [](AgCall& c) { c.args.a_shard.dtype = DType::i32; });
  expect({"invalid_argument", "a_shard must be (4, 6)", "got (3, 6)"},
         [](AgCall& c) { c.args.a_shard = c.args.a_shard.rows(0, 3); });
  expect({"invalid_argument", "a_shard (4, 6) must have contiguous rows", "got strides (1, 4)"}, [](AgCall& c) {
    c.args.a_shard.strides = {1, 4};
  });
  expect({"invalid_argument", "a_shard (4, 6) has no memory"}, [](AgCall& c) { c.args.a_shard.data = nullptr; });
  expect({"invalid_argument", "a_shard must be aligned to its 4 bytes of fp32"},
         [](AgCall& c) { c.args.a_shard.data = static_cast<char*>(c.args.a_shard.data) + 2; });
  expect({"invalid_argument", "b must have K = 6 rows as a_shard (4, 6) has columns, got (5, 6)"},
         [](AgCall& c) { c.args.b = c.b.view; });
  expect({"invalid_argument", "b must have the dtype of a_shard (fp32), got bf16"},
         [](AgCall& c) { c.args.b.dtype = DType::bf16; });
  expect({"invalid_argument", "b (6, 5) must be contiguous in K", "got strides (2, 12)"}, [](AgCall& c) {
    c.args.b.strides = {2, 12};
  });
  expect({"invalid_argument", "b must have 2 dimensions, got 1"}, [](AgCall& c) { c.args.b.ndim = 1; });
  expect({"invalid_argument", "c must have the dtype of a_shard (fp32) or fp32, got fp64"},
         [](AgCall& c) { c.args.c.dtype = DType::fp64; });
  expect({"invalid_argument", "c must be (8, 5)", "got (8, 4)"}, [](AgCall& c) { c.args.c.sizes[1] = 4; });
  expect({"invalid_argument", "c (8, 5) must have contiguous rows that do not overlap", "got strides (4, 1)"},
         [](AgCall& c) { c.args.c.strides[0] = 4; });
  expect({"invalid_argument", "b must have pairs of columns for swiglu, got (6, 5)"},
         [](AgCall& c) { c.args.activation = spec::Activation::swiglu; });
  expect({"invalid_argument", "c must be (8, 2) to take swiglu of b's N, got (8, 5)"}, [](AgCall& c) {
    c.args.activation = spec::Activation::swiglu;
    c.args.b.sizes[1] = 4;
  });
  expect({"plan_mismatch", "made for activation none, the call has swiglu"}, [](AgCall& c) {
    c.args.activation = spec::Activation::swiglu;
    c.args.b.sizes[1] = 4;
    c.args.c.sizes[1] = 2;
    c.schedule.params["N"] = int64_t{4};
  });
  expect({"invalid_argument", "bias must be (5), got (1, 5)"}, [](AgCall& c) { c.args.bias = c.bias.view; });
  expect({"invalid_argument", "bias must have the dtype of c (fp32) or of a_shard (fp32), got fp16"},
         [](AgCall& c) { c.args.bias = TensorView::contiguous(c.bias.view.data, DType::fp16, {5}); });
  expect({"invalid_argument", "bias must be contiguous, got stride 2"}, [](AgCall& c) {
    c.args.bias = TensorView::contiguous(c.gathered.view.data, DType::fp32, {5});
    c.args.bias.strides[0] = 2;
  });
  expect({"invalid_argument", "c (8, 5) must not share memory with b (6, 5)"},
         [](AgCall& c) { c.args.b.data = static_cast<char*>(c.args.c.data) + 16; });
  expect({"invalid_argument", "row_offsets must be 3 ascending entries from 0 to M = 8, got 2 entries: 0 8"},
         [](AgCall& c) {
           c.args.row_offsets = {0, 8};
         });
  expect({"invalid_argument", "row_offsets must be 3 ascending entries from 0 to M = 8, got 3 entries: 0 9 8"},
         [](AgCall& c) {
           c.args.row_offsets = {0, 9, 8};
         });
  expect({"invalid_argument", "a must be (8, 6) to take the gathered rows, got (4, 6)"},
         [](AgCall& c) { c.args.a = c.gathered.view.rows(0, 4); });
  expect({"invalid_argument", "a must have the dtype of a_shard (fp32), got bf16"}, [](AgCall& c) {
    c.args.a = c.gathered.view;
    c.args.a.dtype = DType::bf16;
  });
  expect({"invalid_argument", "a (8, 6) must not share memory with c (8, 5)"}, [](AgCall& c) {
    c.args.a = c.gathered.view;
    c.args.a.data = c.out.view.data;
  });
}

/// Refusals like those of ag_gemm, but that the sum is over M: two ranks of 4 rows.
void check_ag_wgrad(Channel& channel) {
  Matrix a(4, 6, DType::fp32, 0), b(8, 5, DType::fp32, 0), c(6, 5, DType::fp32, 0), gathered(8, 6, DType::fp32, 0);
  a.fill([](int64_t, int64_t) { return 1.0; });
  b.fill([](int64_t, int64_t) { return 1.0; });
  const ops::AgWgradArgs good{.a_shard = a.view, .b = b.view, .c = c.view};
  const spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, good), "hetero_unfused_1d", 2);
  const std::string rank = "rank " + std::to_string(channel.team().rank()) + " ";
  const auto expect = [&](std::initializer_list<const char*> parts,
                          const std::function<void(ops::AgWgradArgs&)>& spoil) {
    ops::AgWgradArgs args = good;
    spoil(args);
    const std::string text = thrown([&] { ops::run(channel, args, schedule); }) + " ";
    expect_parts(text, parts);
    expect_parts(text, {"ag_wgrad", rank.c_str()});
  };
  using Args = ops::AgWgradArgs;
  expect({"invalid_argument", "a_shard must have 2 dimensions, got 0"}, [](Args& args) { args.a_shard = {}; });
  expect({"invalid_argument", "a_shard must be (4, 6) as b's rows are split, got (3, 6)"},
         [](Args& args) { args.a_shard = args.a_shard.rows(0, 3); });
  expect({"invalid_argument", "b must have 2 dimensions, got 1"}, [](Args& args) { args.b.ndim = 1; });
  expect({"invalid_argument", "b must have the dtype of a_shard (fp32), got bf16"},
         [](Args& args) { args.b.dtype = DType::bf16; });
  expect({"invalid_argument", "b (8, 5) must be contiguous in M", "got strides (2, 12)"}, [](Args& args) {
    args.b.strides = {2, 12};
  });
  expect({"invalid_argument", "c must be (6, 5) to take K of a_shard and N of b, got (5, 5)"},
         [](Args& args) { args.c = args.c.rows(0, 5); });
  expect({"invalid_argument", "c must have the dtype of a_shard (fp32) or fp32, got fp64"},
         [](Args& args) { args.c.dtype = DType::fp64; });
  expect({"invalid_argument", "c (6, 5) must not share memory with b (8, 5)"},
         [](Args& args) { args.b.data = static_cast<char*>(args.c.data) + 16; });
  expect({"invalid_argument", "row_offsets must be 3 ascending entries from 0 to M = 8, got 2 entries: 0 8"},
         [](Args& args) {
           args.row_offsets = {0, 8};
         });
  expect({"invalid_argument", "a must be (8, 6) to take the gathered rows, got (4, 6)"},
         [&](Args& args) { args.a = gathered.view.rows(0, 4); });
  expect({"plan_mismatch", "made for row offsets 0 4 8, the call has 0 5 8"}, [&](Args& args) {
    args.row_offsets = {0, 5, 8};
    if (channel.team().rank() == 0) args.a_shard.sizes[0] = 5;
    if (channel.team().rank() == 0) args.a_shard.data = b.view.data;
    if (channel.team().rank() == 0) args.b.data = gathered.view.data;
    if (channel.team().rank() == 1) args.a_shard = args.a_shard.rows(0, 3);
  });
  EXPECT_EQ(thrown([&] { ops::run(channel, good, schedule); }), "ok");
  EXPECT_EQ(c.get(5, 4), 8);
}

void check_schedules(Channel& channel) {
  AgCall good(channel);
  const auto with = [&](const std::function<void(spec::OpSpec&)>& change) {
    AgCall call(channel);
    spec::OpSpec op = ops::op_spec(channel, call.args);
    change(op);
    call.schedule = spec::make_schedule(op, "serial");
    return call.call();
  };
  expect_parts(with([](spec::OpSpec& op) { op.op = "gemm_rs"; }),
               {"plan_mismatch", "ag_gemm: schedule serial_rs was made for operator gemm_rs"});
  expect_parts(with([](spec::OpSpec& op) { op.m = 10; }), {"plan_mismatch", "made for M 10, the call has 8"});
  expect_parts(with([](spec::OpSpec& op) { op.k = 7; }), {"plan_mismatch", "made for K 7, the call has 6"});
  expect_parts(with([](spec::OpSpec& op) { op.n = 7; }), {"plan_mismatch", "made for N 7, the call has 5"});
  expect_parts(with([](spec::OpSpec& op) { op.ranks = 3; }), {"plan_mismatch", "made for G 3, the call has 2"});
  expect_parts(with([](spec::OpSpec& op) { op.dtype = DType::bf16; }),
               {"plan_mismatch", "made for dtype bf16, the call has fp32"});
  expect_parts(with([](spec::OpSpec& op) { op.bias = true; }),
               {"plan_mismatch", "made for bias true, the call has false"});
  expect_parts(with([](spec::OpSpec& op) { op.b_layout = spec::BLayout::kn; }),
               {"plan_mismatch", "made for b_layout kn, the call has nk"});
  expect_parts(with([](spec::OpSpec& op) {
                 op.row_offsets = {0, 3, 8};
               }),
               {"plan_mismatch", "made for row offsets 0 3 8, the call has 0 4 8"});
}

void check_gemm_rs(Channel& channel) {
  Matrix a(8, 6, DType::fp32, 0), b(6, 5, DType::fp32, 0), out(4, 5, DType::fp32, 0), whole(8, 5, DType::fp32, 0);
  const ops::GemmRsArgs good{.a = a.view, .b = b.view, .out = out.view};
  const spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, good), "library");
  const auto call = [&](const std::function<void(ops::GemmRsArgs&)>& spoil) {
    ops::GemmRsArgs args = good;
    spoil(args);
    return thrown([&] { ops::run(channel, args, schedule); });
  };
  expect_parts(call([&](auto& args) { args.out = whole.view; }),
               {"invalid_argument", "gemm_rs: out must be (4, 5)", "got (8, 5)"});
  expect_parts(call([&](auto& args) { args.a.ndim = 3; }), {"invalid_argument", "gemm_rs: a must have 2 dimensions"});
  expect_parts(call([&](auto& args) { args.b = args.b.rows(0, 5); }),
               {"gemm_rs: b must have K = 6 rows", "got (5, 5)"});
  expect_parts(call([&](auto& args) { args.out.data = args.a.data; }),
               {"out (4, 5) must not share memory with a (8, 6)"});
  expect_parts(call([&](auto& args) { args.row_offsets = {0, 4, 7}; }), {"row_offsets", "from 0 to M = 8", "0 4 7"});
  expect_parts(call([&](auto& args) { args.bias = out.view; }), {"gemm_rs: bias must be (5), got (4, 5)"});

  const ops::GemmArArgs good_ar{.a = a.view, .b = b.view, .out = whole.view};
  const spec::Schedule serial = spec::make_schedule(ops::op_spec(channel, good_ar), "serial");
  const auto call_ar = [&](const std::function<void(ops::GemmArArgs&)>& spoil) {
    ops::GemmArArgs args = good_ar;
    spoil(args);
    return thrown([&] { ops::run(channel, args, serial); });
  };
  expect_parts(call_ar([&](auto& args) { args.out = out.view; }),
               {"invalid_argument", "gemm_ar: out must be (8, 5) to take a b, got (4, 5)"});
  expect_parts(call_ar([&](auto& args) { args.a.dtype = DType::u8; }), {"gemm_ar: a must be fp32", "got u8"});
  expect_parts(call_ar([&](auto& args) { args.out.dtype = DType::bf16; }),
               {"out must have the dtype of a (fp32) or fp32, got bf16"});
  EXPECT_EQ(thrown([&] { ops::run(channel, good, schedule); }), "ok");
}

TEST(OpsChecks, EachBadCallNamesArgumentGotAndWantedAndLeavesTheRanksUsable) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    check_ag_gemm(channel);
    check_ag_wgrad(channel);
    check_schedules(channel);
    check_gemm_rs(channel);
    expect_good(channel);
  });
}

/// A call like one before is looked at in part.
TEST(OpsChecks, EachBadCallIsFoundBehindGoodOnesToo) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (int call = 0; call < 3; ++call) expect_good(channel);
    check_ag_gemm(channel);
    check_schedules(channel);
    for (int call = 0; call < 3; ++call) expect_good(channel);
    check_ag_gemm(channel);
    check_schedules(channel);
    expect_good(channel);
  });
}

/// A schedule does not say whether its rows were given or come from M.
TEST(OpsChecks, RowsThatAreGivenAndRowsThatAreDealtAreOneCall) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const int rank = runtime.world().rank();
    const std::vector<int64_t> even = {0, 4, 8};
    const auto expect_given = [&](int64_t n) {
      AgCall call(channel, n);
      call.args.row_offsets = even;
      EXPECT_EQ(call.call(), "ok") << "N " << n;
      EXPECT_EQ(call.out.get(7, n - 1), 6);
    };
    expect_good(channel, 5);
    expect_given(rank == 0 ? 5 : 7);
    expect_given(rank == 0 ? 9 : 7);
    expect_given(rank == 0 ? 5 : 7);
    expect_good(channel, rank == 0 ? 9 : 5);
  });
}

TEST(OpsChecks, AScheduleThatWasChangedInPlaceIsAnother) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    AgCall call(channel);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(call.call(), "ok");
    call.schedule.tasks[0].id += "2";
    const uint64_t before = runtime.stats().preparations;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(call.call(), "ok");
    EXPECT_EQ(runtime.stats().preparations, before + 1);
    call.schedule.params["M"] = int64_t{9};
    expect_parts(call.call(), {"plan_mismatch", "was made for M 9, the call has 8"});
  });
}

TEST(OpsChecks, SchedulesThatTheTeamCannotRunAreRefusedBeforeAnythingMoves) {
  RankOptions options;
  options.net_engine = "none";
  const auto body = [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    AgCall call(channel);
    call.schedule = spec::make_schedule(ops::op_spec(channel, call.args), "library");
    expect_parts(call.call(), {"not_supported", "schedule library, task all_gather", "no collectives engine"});
    call.schedule = spec::make_schedule(ops::op_spec(channel, call.args), "serial");
    call.schedule.tasks.back().kind = spec::Kind::tiles;
    expect_parts(call.call(), {"not_supported", "schedule serial, task gemm: the operator has no tiles body"});
    expect_good(channel);
  };
  run_ranks(2, Mode::threads, body, options);
}

TEST(OpsChecks, AGatheredAIsRefusedByAScheduleThatHasNone) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    AgCall call(channel);
    const Matrix all(8, 6, DType::fp32, 0);
    const char* reason = "schedule k_slab gathers nothing that could be returned in a";
    call.args.row_offsets = {0, 8, 8};
    call.args.a_shard = all.view.rows(0, call.rank == 0 ? 8 : 0);
    call.schedule = spec::make_schedule(ops::op_spec(channel, call.args), "k_slab", 2);
    EXPECT_TRUE(ops::supports(channel, ops::op_spec(channel, call.args), call.schedule).ok());
    call.args.a = call.gathered.view;
    expect_parts(ops::supports(channel, ops::op_spec(channel, call.args), call.schedule).reason, {reason});
    expect_parts(call.call(), {"not_supported", reason});
    expect_good(channel);
  });
}

/// Text of the error with its code; ranks other than `bad` get it with that rank's name in front.
void expect_refused_by(int bad, const std::string& text, std::initializer_list<const char*> parts, int rank) {
  expect_parts(text, parts);
  const std::string who = "rank " + std::to_string(bad) + " refused the call";
  EXPECT_EQ(text.find(who) != std::string::npos, rank != bad) << text;
}

TEST(OpsChecks, OneRankWithBadArgumentsEndsTheFirstCallOfAShapeOnAllRanks) {
  for (const Mode mode : {Mode::threads, Mode::threads_adversary, Mode::processes}) {
    if (mode == Mode::processes && !kHasProcesses) continue;
    run_ranks(2, mode, [](Runtime& runtime) {
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      const int rank = runtime.world().rank();
      for (const int bad : {1, 0}) {
        AgCall wrong(channel);
        if (rank == bad) wrong.args.b.dtype = DType::bf16;
        expect_refused_by(bad, wrong.call(),
                          {"invalid_argument", "b must have the dtype of a_shard (fp32), got bf16",
                           bad == 0 ? "; rank 0" : "; rank 1"},
                          rank);
      }
      AgCall made_for_another(channel);
      if (rank == 1) made_for_another.schedule.op = "gemm_rs";
      expect_refused_by(1, made_for_another.call(), {"plan_mismatch", "was made for operator gemm_rs"}, rank);
      expect_good(channel);
    });
  }
}

TEST(OpsChecks, TheOtherOperatorsTellTheirPeersToo) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const int rank = runtime.world().rank();
    Matrix a(9, 6, DType::fp32, 0), b(6, 5, DType::fp32, 0), rows(3, 5, DType::fp32, 0), whole(9, 5, DType::fp32, 0);
    for (Matrix* m : {&a, &b}) m->fill([](int64_t, int64_t) { return 1.0; });
    const ops::GemmRsArgs rs{.a = a.view, .b = b.view, .out = rows.view};
    const ops::GemmArArgs ar{.a = a.view, .b = b.view, .out = whole.view};
    const spec::Schedule scatter = spec::make_schedule(ops::op_spec(channel, rs), "hetero_fused_1d");
    const spec::Schedule reduce = spec::make_schedule(ops::op_spec(channel, ar), "grouped_unfused_1d", 2);
    ops::GemmRsArgs bad_rs = rs;
    ops::GemmArArgs bad_ar = ar;
    if (rank == 2) bad_rs.out = whole.view;
    if (rank == 1) bad_ar.a.data = nullptr;
    expect_refused_by(2, thrown([&] { ops::run(channel, bad_rs, scatter); }),
                      {"invalid_argument", "out must be (3, 5)"}, rank);
    expect_refused_by(1, thrown([&] { ops::run(channel, bad_ar, reduce); }),
                      {"invalid_argument", "gemm_ar: a (9, 6) has no memory (null)"}, rank);
    EXPECT_EQ(thrown([&] { ops::run(channel, rs, scatter); }), "ok");
    EXPECT_EQ(thrown([&] { ops::run(channel, ar, reduce); }), "ok");
    EXPECT_EQ(rows.get(2, 4), 18);
    EXPECT_EQ(whole.get(8, 4), 18);
  });
}

TEST(OpsChecks, AShapeThatRanBeforeIsRefusedWithoutTheOthers) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    expect_good(channel);
    if (runtime.world().rank() == 1) {  // rank 0 makes no call at all now
      AgCall wrong(channel);
      wrong.args.a_shard.data = nullptr;
      expect_parts(wrong.call(), {"invalid_argument", "a_shard (4, 6) has no memory", "rank 1"});
    }
    expect_good(channel);
  });
}

/// A rank for which N is new asks its peers for their schedule then.
TEST(OpsChecks, WhereRanksHaveTwoSchedulesForRowsACallOfOtherColumnsIsRefusedByAll) {
  for (const Mode mode : {Mode::threads, Mode::threads_adversary, Mode::processes}) {
    if (mode == Mode::processes && !kHasProcesses) continue;
    run_ranks(2, mode, [](Runtime& runtime) {
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      const int rank = runtime.world().rank();
      for (const char* family : {"hetero_fused_1d", "hetero_unfused_1d"}) expect_good(channel, 5, family);
      for (const int bad : {1, 0}) {
        AgCall wrong(channel, 7);
        if (rank == bad) wrong.args.b.dtype = DType::bf16;
        expect_refused_by(bad, wrong.call(), {"invalid_argument", "b must have the dtype of a_shard (fp32), got bf16"},
                          rank);
      }
      for (const int64_t n : {7, 5}) expect_good(channel, n);
    });
  }
}

TEST(OpsChecks, WhereRanksHaveTwoSchedulesForRowsAKnownCallIsRefusedByTheRankAlone) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (const char* family : {"hetero_fused_1d", "hetero_unfused_1d"}) expect_good(channel, 5, family);
    for (int i = 0; i < 2 && runtime.world().rank() == 1; ++i) {  // rank 0 is in the call meanwhile
      AgCall wrong(channel);
      wrong.args.b.dtype = DType::bf16;
      const std::string text = wrong.call();
      expect_parts(text, {"invalid_argument", "b must have the dtype of a_shard (fp32), got bf16"});
      EXPECT_EQ(text.find("refused"), std::string::npos) << text;
    }
    for (const int64_t n : {5, 7}) expect_good(channel, n);
  });
}

TEST(OpsChecks, SupportsAnswersWhatRunWouldRefuse) {
  RankOptions options;
  options.net_engine = "none";
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        Channel& channel = runtime.world().channel(StreamRef::cpu());
        const AgCall call(channel);
        const spec::OpSpec op = ops::op_spec(channel, call.args);
        EXPECT_EQ(ops::supports(channel, op, call.schedule).reason, "");
        EXPECT_TRUE(ops::supports(channel, op, call.schedule).ok());
        const ops::Support library = ops::supports(channel, op, spec::make_schedule(op, "library"));
        EXPECT_FALSE(library.ok());
        expect_parts(library.reason, {"schedule library, task all_gather", "no collectives engine"});
        spec::Schedule tiles = call.schedule;
        tiles.tasks.back().kind = spec::Kind::tiles;
        expect_parts(ops::supports(channel, op, tiles).reason, {"the operator has no tiles body"});
        for (const auto& [field, change] : std::vector<std::pair<const char*, std::function<void(spec::OpSpec&)>>>{
                 {"M 8, the call has 9", [](spec::OpSpec& o) { o.m = 9; }},
                 {"b_layout nk, the call has kn", [](spec::OpSpec& o) { o.b_layout = spec::BLayout::kn; }},
                 {"operator ag_gemm", [](spec::OpSpec& o) { o.op = "gemm_rs"; }}}) {
          spec::OpSpec other = op;
          change(other);
          expect_parts(ops::supports(channel, other, call.schedule).reason, {"was made for", field});
        }
        spec::OpSpec integers = op;
        integers.dtype = DType::i32;
        spec::Schedule of_integers = call.schedule;
        of_integers.params["dtype"] = std::string("i32");
        expect_parts(ops::supports(channel, integers, of_integers).reason, {"a_shard must be fp32", "got i32"});
      },
      options);
}

TEST(OpsChecks, ColumnsOfOneMatrixAreNoOverlap) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    // x (4, 12): columns 0..5 are a, columns 6..10 take c.
    Matrix x(4, 12, DType::fp32, 0), b(6, 5, DType::fp32, 0);
    x.fill([](int64_t, int64_t) { return 1.0; });
    b.fill([](int64_t, int64_t) { return 2.0; });
    ops::AgGemmArgs args{.a_shard = x.view, .b = b.view, .c = x.view};
    args.a_shard.sizes[1] = 6;
    args.c.sizes[1] = 5;
    args.c.data = static_cast<float*>(x.view.data) + 6;
    const spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, args), "serial");
    ops::run(channel, args, schedule);
    EXPECT_EQ(x.get(3, 10), 12);
    EXPECT_EQ(x.get(3, 11), 1);
    args.c.data = static_cast<float*>(x.view.data) + 5;
    expect_parts(thrown([&] { ops::run(channel, args, schedule); }), {"c (4, 5) must not share memory with a_shard"});
  });
}

}  // namespace
}  // namespace overlace::test
