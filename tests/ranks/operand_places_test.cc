// Operands that lie on another processor than the rank, told by a machine that is made up: each is refused before
// anything moves, in C++ and in C.
#include <functional>
#include <set>
#include <thread>

#include "overlace/capi.h"
#include "src/capi/handles.h"
#include "src/runtime/state.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

/// Memory is on GPU 0, where the rank is said to be, but for these addresses.
struct FakeGpus {
  std::map<const void*, int> elsewhere;

  void install(Runtime& runtime) {
    runtime.state().places = runtime::OperandPlaces(0, [this](const void* address) -> base::Result<int> {
      const auto found = elsewhere.find(address);
      return found == elsewhere.end() ? 0 : found->second;
    });
  }
};

/// Runs `call` with each of the operands elsewhere, then with all of them in place.
void expect_each_refused(FakeGpus& gpus, const std::string& op, const std::map<std::string, TensorView>& operands,
                         int rank, const std::function<void()>& call) {
  const std::string end = ", wanted GPU 0 of this context; rank " + std::to_string(rank);
  for (const auto& [name, view] : operands) {
    for (const auto& [place, words] : {std::pair(1, " is on GPU 1"), std::pair(-1, " is in host memory")}) {
      gpus.elsewhere = {{view.data, place}};
      try {
        call();
        ADD_FAILURE() << op << " took " << name << words;
      } catch (const InvalidArgument& e) {
        EXPECT_EQ(e.code(), Errc::invalid_argument);
        EXPECT_NE(std::string(e.what()).find(op + ": " + name + words + end), std::string::npos) << e.what();
      }
    }
    gpus.elsewhere = {{view.data, runtime::kManagedMemory}};
    EXPECT_NO_THROW(call()) << op << " " << name;
  }
  gpus.elsewhere.clear();
  EXPECT_NO_THROW(call()) << op;
}

TEST(OperandPlaces, EachOperandOfEachOperatorIsRefusedElsewhere) {
  // Bad calls come first and anew each time: of one rank nobody waits for them.
  run_ranks(1, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    FakeGpus gpus;
    Matrix a(4, 6, DType::fp32, 0), b(6, 5, DType::fp32, 0), c(4, 5, DType::fp32, 0), bias(1, 5, DType::fp32, 0),
        gathered(4, 6, DType::fp32, 0), dy(4, 5, DType::fp32, 0), dw(6, 5, DType::fp32, 0);
    for (Matrix* m : {&a, &b, &bias, &dy}) m->fill([](int64_t, int64_t) { return 1.0; });
    const TensorView vector = TensorView::contiguous(bias.view.data, DType::fp32, {5});
    const auto check = [&](const char* op, const std::map<std::string, TensorView>& operands, const auto& args) {
      const spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, args), "library");
      gpus.install(runtime);
      expect_each_refused(gpus, op, operands, 0, [&] {
        gpus.install(runtime);  // forgets what it knows
        ops::run(channel, args, schedule);
      });
    };
    check("ag_gemm", {{"a_shard", a.view}, {"b", b.view}, {"c", c.view}, {"bias", vector}, {"a", gathered.view}},
          ops::AgGemmArgs{.a_shard = a.view, .b = b.view, .c = c.view, .bias = vector, .a = gathered.view});
    check("ag_wgrad", {{"a_shard", a.view}, {"b", dy.view}, {"c", dw.view}},
          ops::AgWgradArgs{.a_shard = a.view, .b = dy.view, .c = dw.view});
    check("gemm_rs", {{"a", a.view}, {"b", b.view}, {"out", c.view}, {"bias", vector}},
          ops::GemmRsArgs{.a = a.view, .b = b.view, .out = c.view, .bias = vector});
    check("gemm_ar", {{"a", a.view}, {"b", b.view}, {"out", c.view}, {"bias", vector}},
          ops::GemmArArgs{.a = a.view, .b = b.view, .out = c.view, .bias = vector});
    runtime.state().places = {};
  });
}

TEST(OperandPlaces, OneRankWithAnOperandElsewhereEndsTheFirstCallOnAll) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    FakeGpus gpus;
    gpus.install(runtime);
    Matrix a(4, 6, DType::fp32, 0), b(6, 5, DType::fp32, 0), c(8, 5, DType::fp32, 0);
    for (Matrix* m : {&a, &b}) m->fill([](int64_t, int64_t) { return 1.0; });
    const ops::AgGemmArgs args{.a_shard = a.view, .b = b.view, .c = c.view};
    const spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, args), "hetero_fused_1d", 2);
    if (channel.team().rank() == 1) gpus.elsewhere = {{b.view.data, 0x5}};
    try {
      ops::run(channel, args, schedule);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("b is on GPU 5, wanted GPU 0 of this context; rank 1"), std::string::npos)
          << e.what();
    }
    gpus.elsewhere.clear();
    ops::run(channel, args, schedule);
    EXPECT_EQ(c.get(7, 4), 6);
    runtime.state().places = {};
  });
}

TEST(OperandPlaces, AStripedRangeIsTakenWhoeverHasItsPages) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    const size_t page = runtime.heap().stripe_granule();
    const StripedRange range = runtime.heap().stripe(std::vector<StripePart>{{1, page}, {0, page}}, "c");
    runtime::OperandPlaces places(0, [&](const void* address) { return runtime.state().place_of(address); });
    char* const begin = static_cast<char*>(range.data());
    const auto check = [&](const void* address) { return places.check("op", "c", address, 0).code(); };
    for (const size_t at : {size_t{0}, page, 2 * page - 1}) EXPECT_EQ(check(begin + at), Errc::ok) << at;
    EXPECT_EQ(check(begin + 2 * page), Errc::invalid_argument) << "behind it: of the host";
    EXPECT_EQ(check(begin - 1), Errc::invalid_argument);
    runtime.heap().free(range);
    EXPECT_EQ(runtime.state().place_of(begin).value(), runtime::kHostMemory);
  });
}

#define EXPECT_OVL(call) EXPECT_EQ(OVL_OK, (call)) << #call << ": " << ovl_error_text()

TEST(OperandPlaces, TheCApiRefusesOperandsAndBuffersOfCollectives) {
  float a[8] = {}, b[6] = {}, c[12] = {};
  ovl_world* world = nullptr;
  ovl_runtime* runtime = nullptr;
  ovl_team* team = nullptr;
  ovl_channel* channel = nullptr;
  ovl_schedule* schedule = nullptr;
  ovl_options options{};
  options.struct_size = sizeof options, options.backend = OVL_BACKEND_CPU, options.heap_bytes = 1 << 20;
  EXPECT_OVL(ovl_world_create(1, &world));
  EXPECT_OVL(ovl_runtime_open_thread(world, 0, &options, &runtime));
  EXPECT_OVL(ovl_runtime_world(runtime, &team));
  EXPECT_OVL(ovl_channel_open(team, nullptr, 0, &channel));
  FakeGpus gpus;
  gpus.elsewhere = {{b, 1}};
  {
    const auto object = capi::find<capi::RuntimeObject>({"test", "runtime"}, runtime);
    ASSERT_TRUE(object.ok());
    gpus.install(*(*object)->runtime);
  }
  ovl_op op{};
  op.struct_size = sizeof op, op.name = "gemm_ar", op.m = 4, op.n = 3, op.k = 2, op.ranks = 1;
  op.dtype = op.out_dtype = OVL_FP32, op.b_layout = OVL_KN;
  EXPECT_OVL(ovl_schedule_make(&op, "library", 1, &schedule));
  ovl_arg args[] = {ovl_tensor_arg("a", {}), ovl_tensor_arg("b", {}), ovl_tensor_arg("out", {})};
  EXPECT_OVL(ovl_matrix(a, OVL_FP32, 4, 2, &args[0].tensor));
  EXPECT_OVL(ovl_matrix(b, OVL_FP32, 2, 3, &args[1].tensor));
  EXPECT_OVL(ovl_matrix(c, OVL_FP32, 4, 3, &args[2].tensor));
  EXPECT_EQ(ovl_call(channel, "gemm_ar", args, 3, schedule), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "gemm_ar: b is on GPU 1, wanted GPU 0 of this context; rank 0");
  EXPECT_EQ(ovl_all_gather(channel, b, c, 6, OVL_FP32), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "ovl_all_gather: send is on GPU 1, wanted GPU 0 of this context; rank 0");
  EXPECT_EQ(ovl_all_reduce(channel, c, b, 6, OVL_FP32), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "ovl_all_reduce: recv is on GPU 1, wanted GPU 0 of this context; rank 0");
  const int64_t counts[] = {6};
  EXPECT_EQ(ovl_all_to_allv(channel, c, counts, b, counts, OVL_FP32), OVL_INVALID_ARGUMENT);
  EXPECT_STREQ(ovl_error_text(), "ovl_all_to_allv: recv is on GPU 1, wanted GPU 0 of this context; rank 0");
  EXPECT_OVL(ovl_all_gather(channel, b, c, 0, OVL_FP32));
  gpus.elsewhere.clear();
  EXPECT_OVL(ovl_call(channel, "gemm_ar", args, 3, schedule));
  EXPECT_OVL(ovl_all_gather(channel, b, c, 6, OVL_FP32));
  EXPECT_OVL(ovl_schedule_free(schedule));
  EXPECT_OVL(ovl_runtime_close(runtime));
  EXPECT_OVL(ovl_world_free(world));
}

}  // namespace
}  // namespace overlace::test
