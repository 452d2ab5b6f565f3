// A call is refused, or gives what it gives, as if no call had been made before: whatever the channel has kept of calls
// whose arguments look much like its own.
#include <functional>
#include <set>

#include "src/ops/common/call.h"
#include "src/spec/families/families.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

using ops::CallArgs;

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

/// The arguments of one rank's call, all in `values` but for indices, with what may be said of them.
struct Kit {
  explicit Kit(const spec::OperatorDef& d) : def(&d), values(1024) {}
  /// The floats from `at` on, filled.
  TensorView matrix(size_t at, std::initializer_list<int64_t> shape) {
    const TensorView view = TensorView::contiguous(values.data() + at, DType::fp32, shape);
    for (int64_t i = 0; i < view.numel(); ++i)
      values[at + static_cast<size_t>(i)] = static_cast<float>(i % 7) - static_cast<float>(at % 5);
    return view;
  }
  TensorView& operator[](std::string_view name) { return tensor(&args, name); }
  TensorView& tensor(CallArgs* of, std::string_view name) const {
    const auto is_named = [&](const spec::Arg& arg) { return arg.call == name; };
    const auto found = std::find_if(def->args.begin(), def->args.end(), is_named);
    EXPECT_NE(found, def->args.end()) << name;
    return of->tensors.at(static_cast<size_t>(found - def->args.begin()));
  }
  /// Error and text, or all elements of results.
  std::string call(Channel& channel, const CallArgs& with, const spec::Schedule& schedule) {
    try {
      ops::call(channel, *def, with, schedule);
    } catch (const Error& e) {
      return std::string(errc_name(e.code())) + ": " + e.what();
    }
    std::string out = "ok";
    for (size_t i = 0; i < def->args.size(); ++i) {
      const TensorView& t = with.tensors[i];
      if (def->args[i].role != spec::Role::output && def->args[i].role != spec::Role::gathered) continue;
      for (int64_t n = 0; t.defined() && n < t.dim(0) * t.dim(1); ++n) {
        const int64_t at = n / t.dim(1) * t.stride(0) + n % t.dim(1) * t.stride(1);
        const double value = base::load_element(t.data, t.dtype, at);
        base::store_element(t.data, t.dtype, at, 99);  // so that the next call must write it
        out += base::format(" {}", value);
      }
    }
    return out;
  }
  spec::Schedule schedule(Channel& channel) const {
    return spec::make_schedule(ops::op_spec(channel, *def, args), "serial");
  }

  const spec::OperatorDef* def;
  std::vector<float> values;
  std::vector<int64_t> indices{}, offsets{};
  CallArgs args{};
};

using Maker = std::function<std::unique_ptr<Kit>()>;
using Spoiler = std::function<void(Kit&, CallArgs*)>;

/// What a call says whose arguments are spoilt, the first one of a runtime.
std::string first_call(const Maker& make, const Spoiler& spoil) {
  std::string said;
  run_ranks(1, Mode::threads, [&](Runtime& runtime) {
    const std::unique_ptr<Kit> kit = make();
    const spec::Schedule schedule = kit->schedule(channel_of(runtime));
    CallArgs args = kit->args;
    spoil(*kit, &args);
    said = kit->call(channel_of(runtime), args, schedule);
  });
  return said;
}

/// `num_taken` of the spoilt calls give results. Each is made twice between sound ones: for the second one the channel
/// knows what the first has posed.
void expect_as_first_calls(const Maker& make, const std::vector<Spoiler>& spoilers, int num_taken) {
  const std::string sound = first_call(make, [](Kit&, CallArgs*) {});
  ASSERT_EQ(sound.substr(0, 3), "ok ") << sound;
  std::vector<std::string> wanted;
  for (const Spoiler& spoil : spoilers) wanted.push_back(first_call(make, spoil));
  EXPECT_EQ(std::count_if(wanted.begin(), wanted.end(), [](const auto& text) { return text.starts_with("ok "); }),
            num_taken);
  run_ranks(1, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const std::unique_ptr<Kit> kit = make();
    const spec::Schedule schedule = kit->schedule(channel);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(kit->call(channel, kit->args, schedule), sound);
    for (int round = 0; round < 2; ++round)
      for (size_t i = 0; i < spoilers.size(); ++i) {
        CallArgs args = kit->args;
        spoilers[i](*kit, &args);
        EXPECT_EQ(kit->call(channel, args, schedule), wanted[i]) << i << ", round " << round;
        EXPECT_EQ(kit->call(channel, kit->args, schedule), sound) << "the call after " << i;
      }
  });
}

/// Sets a member of a tensor.
template <class Change>
Spoiler on(std::string_view name, Change change) {
  return [=](Kit& kit, CallArgs* args) { change(kit.tensor(args, name)); };
}
Spoiler moved_to(std::string_view name, std::string_view other, int64_t bytes) {
  return [=](Kit& kit, CallArgs* args) {
    kit.tensor(args, name).data = static_cast<char*>(kit.tensor(args, other).data) + bytes;
  };
}
Spoiler of_call(void (*change)(CallArgs*)) {
  return [=](Kit&, CallArgs* args) { change(args); };
}

/// b (k, n) stored (n, k).
std::unique_ptr<Kit> make_gemm_rs(int64_t n, int64_t k) {
  auto kit = std::make_unique<Kit>(spec::kGemmRs);
  kit->args.tensors.resize(kit->def->args.size());
  (*kit)["a"] = kit->matrix(0, {4, k});
  (*kit)["b"] = kit->matrix(128, {n, k}).transposed();
  (*kit)["out"] = kit->matrix(256, {4, n});
  kit->args.row_offsets = {0, 4};
  return kit;
}

TEST(KnownProblems, AGemmIsRefusedAsAFirstOne) {
  const std::vector<Spoiler> spoilers = {
      on("a", [](TensorView& t) { t.data = nullptr; }),
      on("out", [](TensorView& t) { t.data = nullptr; }),
      moved_to("b", "b", 2),
      moved_to("out", "a", 0),
      moved_to("out", "b", 4),
      on("a", [](TensorView& t) { t.strides[0] = 5; }),
      on("b", [](TensorView& t) { t.strides[0] = 2; }),
      on("b",
         [](TensorView& t) {
           t.strides = {5, 1};
         }),
      on("out", [](TensorView& t) { t.sizes[1] = 4; }),
      on("a", [](TensorView& t) { t.dtype = DType::fp16; }),
      on("b", [](TensorView& t) { t = {}; }),
      [](Kit& kit, CallArgs* args) {
        kit.tensor(args, "bias") = kit.matrix(384, {4, 6});
      },
      [](Kit& kit, CallArgs* args) { kit.tensor(args, "bias") = kit.matrix(384, {5}); },
      of_call([](CallArgs* args) { args->tensors.pop_back(); }),
      of_call([](CallArgs* args) {
        args->row_offsets = {0, 3};
      }),
      of_call([](CallArgs* args) {
        args->row_offsets = {1, 4};
      }),
      of_call([](CallArgs* args) { args->splits = {4}; }),
      of_call([](CallArgs* args) { args->blocks = {5}; }),
      of_call([](CallArgs* args) { args->exchange = spec::Exchange::cols; }),
      of_call([](CallArgs* args) { args->activation = spec::Activation::swiglu; }),
      of_call([](CallArgs* args) { args->fields["depth"] = int64_t{1}; }),
      // The same problem, said or stored in another way.
      of_call([](CallArgs* args) { args->row_offsets.clear(); }),
      on("a", [](TensorView& t) { t.strides[0] = 7; }),
  };
  expect_as_first_calls([] { return make_gemm_rs(5, 6); }, spoilers, 2);
}

/// There both ways of storing b may have the same strides.
TEST(KnownProblems, AFactorOfOneRowOrColumnIsReadAsInAFirstCall) {
  std::vector<Spoiler> spoilers;
  for (const int64_t outer : {1, 2, 5, 6, 7})
    for (const int64_t inner : {1, 2, 5, 6, 7})
      spoilers.push_back(on("b", [=](TensorView& t) { t.strides[0] = outer, t.strides[1] = inner; }));
  expect_as_first_calls([] { return make_gemm_rs(1, 6); }, spoilers, 5);
  expect_as_first_calls([] { return make_gemm_rs(5, 1); }, spoilers, 25);
  expect_as_first_calls([] { return make_gemm_rs(1, 1); }, spoilers, 25);
}

TEST(KnownProblems, GatheredRowsAndActivationsAreLookedAtAsInAFirstCall) {
  const auto make = [] {
    auto kit = std::make_unique<Kit>(spec::kAgGemm);
    kit->args.tensors.resize(kit->def->args.size());
    (*kit)["a_shard"] = kit->matrix(0, {4, 6});
    (*kit)["b"] = kit->matrix(128, {8, 6}).transposed();
    (*kit)["c"] = kit->matrix(256, {4, 8});
    (*kit)["a"] = kit->matrix(384, {4, 6});
    return kit;
  };
  const std::vector<Spoiler> spoilers = {
      moved_to("a", "c", 0),
      moved_to("a", "a_shard", 0),
      moved_to("a", "b", 8),
      moved_to("a", "a", 1),
      on("a", [](TensorView& t) { t.data = nullptr; }),
      on("a", [](TensorView& t) { t.dtype = DType::bf16; }),
      on("a", [](TensorView& t) { t.sizes[0] = 3; }),
      on("a", [](TensorView& t) { t = {}; }),
      of_call([](CallArgs* args) { args->activation = spec::Activation::swiglu; }),
      [](Kit& kit, CallArgs* args) {
        args->activation = spec::Activation::swiglu;
        kit.tensor(args, "c").sizes[1] = 4;
      },
  };
  expect_as_first_calls(make, spoilers, 1);
}

/// Four samples, one table; `length` entries.
std::unique_ptr<Kit> make_embedding(int64_t length) {
  auto kit = std::make_unique<Kit>(spec::kEmbeddingA2a);
  kit->args.tensors.resize(kit->def->args.size());
  kit->args.fields = {{"batch", int64_t{4}},
                      {"bounds", std::string("error")},
                      {"mode", std::string("sum")},
                      {"placement", std::string(R"({"tables":[{"rows":7,"dim":3}],"entries":2,)"
                                                R"("features":[{"table":0,"rank":0,"column":0}]})")}};
  for (int64_t i = 0; i < length; ++i) kit->indices.push_back(i * length % 7);
  for (int64_t i = 0; i <= 4; ++i) kit->offsets.push_back(i * length / 4);
  (*kit)["weights"] = kit->matrix(0, {21});
  (*kit)["indices"] = TensorView::contiguous(kit->indices.data(), DType::i64, {length});
  (*kit)["offsets"] = TensorView::contiguous(kit->offsets.data(), DType::i64, {5});
  (*kit)["per_sample_weights"] = kit->matrix(64, {length});
  (*kit)["out"] = kit->matrix(256, {4, 3});
  return kit;
}

TEST(KnownProblems, BagsAreRefusedAsInAFirstCall) {
  const std::vector<Spoiler> spoilers = {
      on("indices",
         [](TensorView& t) {
           t = TensorView::contiguous(t.data, DType::i64, {4, 2});
         }),
      on("indices", [](TensorView& t) { t.sizes[0] = 7; }),
      on("indices", [](TensorView& t) { t.strides[0] = 2; }),
      on("indices", [](TensorView& t) { t.dtype = DType::fp32; }),
      on("indices", [](TensorView& t) { t.data = nullptr; }),
      on("offsets", [](TensorView& t) { t.sizes[0] = 4; }),
      on("offsets", [](TensorView& t) { t = {}; }),
      on("per_sample_weights", [](TensorView& t) { t.sizes[0] = 7; }),
      on("per_sample_weights",
         [](TensorView& t) {
           t = TensorView::contiguous(t.data, DType::fp32, {2, 4});
         }),
      on("per_sample_weights", [](TensorView& t) { t.dtype = DType::fp16; }),
      on("weights", [](TensorView& t) { t.sizes[0] = 20; }),
      on("weights",
         [](TensorView& t) {
           t = TensorView::contiguous(t.data, DType::fp32, {7, 3});
         }),
      moved_to("out", "weights", 0),
      moved_to("out", "per_sample_weights", 28),
      moved_to("per_sample_weights", "per_sample_weights", 1),
      of_call([](CallArgs* args) { args->fields["batch"] = int64_t{3}; }),
      of_call([](CallArgs* args) { args->fields["mode"] = std::string("max"); }),
      on("per_sample_weights", [](TensorView& t) { t = {}; }),
  };
  expect_as_first_calls([] { return make_embedding(8); }, spoilers, 1);
}

TEST(KnownProblems, ElementsOfBagsAreReadInEachCall) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const std::unique_ptr<Kit> kit = make_embedding(8);
    const spec::Schedule schedule = kit->schedule(channel);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(kit->call(channel, kit->args, schedule).substr(0, 3), "ok ");
    kit->indices[5] = 7;
    EXPECT_EQ(kit->call(channel, kit->args, schedule),
              "invalid_argument: embedding_a2a: rank 0, feature 0, bag 2, position 1: index is 7, wanted 0 to 6: the "
              "table has 7 rows; rank 0");
    kit->indices[5] = 6, kit->offsets[2] = 9;
    EXPECT_EQ(kit->call(channel, kit->args, schedule),
              "invalid_argument: embedding_a2a: offsets[2] is 9, wanted 2 to 8; rank 0");
  });
}

/// One of them, whatever the lengths of data; each batch gives its own sums.
TEST(KnownProblems, BatchesOfOtherLengthsKeepOne) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const spec::Schedule schedule = make_embedding(1)->schedule(channel);
    std::set<std::shared_ptr<const ops::Problem>> problems;
    for (int64_t length = 0; length < 100; ++length) {
      const std::unique_ptr<Kit> kit = make_embedding(length);
      ASSERT_EQ(kit->call(channel, kit->args, schedule).substr(0, 3), "ok ") << length;
      const ops::Posed posed = ops::pose_checked(channel, *kit->def, kit->args);
      ASSERT_TRUE(posed.status.ok()) << posed.status.message();
      problems.insert(posed.problem);
      (void)ops::call_status(channel, *kit->def, kit->args, schedule);
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 3; ++j) {
          double want = 0;
          for (int64_t e = kit->offsets[static_cast<size_t>(i)]; e < kit->offsets[static_cast<size_t>(i) + 1]; ++e)
            want += static_cast<double>(kit->values[64 + static_cast<size_t>(e)]) *
                    static_cast<double>(kit->values[static_cast<size_t>(kit->indices[static_cast<size_t>(e)] * 3 + j)]);
          ASSERT_EQ(kit->values[static_cast<size_t>(256 + i * 3 + j)], want) << length << " " << i << " " << j;
        }
    }
    EXPECT_EQ(problems.size(), 1U);
  });
}

/// Dtype, bias and activation choose the place where a problem is kept, which has room for two.
TEST(KnownProblems, KindsOfOneShapeAreAllKept) {
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const std::unique_ptr<Kit> kit = make_gemm_rs(5, 6);
    kit->args.row_offsets.clear();
    ASSERT_EQ(kit->call(channel, kit->args, kit->schedule(channel)).substr(0, 3), "ok ");
    std::vector<CallArgs> kinds;
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16})
      for (const bool has_bias : {false, true}) {
        CallArgs& args = kinds.emplace_back(kit->args);
        if (has_bias) kit->tensor(&args, "bias") = kit->matrix(384, {5});
        for (TensorView& t : args.tensors) t.dtype = dtype;
      }
    std::vector<std::shared_ptr<const ops::Problem>> kept;
    for (const CallArgs& args : kinds) kept.push_back(ops::pose_checked(channel, *kit->def, args).problem);
    for (size_t i = 0; i < kinds.size(); ++i)
      EXPECT_EQ(ops::pose_checked(channel, *kit->def, kinds[i]).problem, kept[i]) << i;
  });
}

/// Their blocks' sizes are no shape of an argument of either rank.
TEST(KnownProblems, SplitsThatMoveTheSameRowsElsewhereAreOthers) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    std::vector<Case> kinds;
    for (const std::string op : {"gemm_a2a", "a2a_gemm"})
      for (const std::vector<int64_t>& splits : {std::vector<int64_t>{1, 3, 3, 1}, {2, 2, 2, 2}, {3, 1, 1, 3}})
        kinds.push_back({.op = op, .family = "serial", .m = 8, .splits = splits});
    for (int64_t round = 0; round < 4; ++round)
      for (const Case& c : kinds) {
        Operands operands(c, channel_of(runtime));
        operands.fill(round);
        operands.run();
        EXPECT_EQ(operands.mismatch(), "") << c.text() << ", round " << round;
      }
  });
}

}  // namespace
}  // namespace overlace::test
