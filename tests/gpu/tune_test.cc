// Measuring with GPUs. In a program: the winners are right, known calls and graphs stay so, captures are refused. On
// the command line: with the kernels of the GPUs that are here.
#include "overlace/tune.h"

#include <gtest/gtest.h>

#include "cli/plan/probe.h"
#include "src/runtime/backend.h"
#include "src/spec/fusable.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/ops_site.h"

namespace overlace {
namespace {

TEST(GpuTune, WinnersAreRightAndWhatWasCapturedBeforeToo) {
  OVERLACE_NEED_GPUS(2);
  const std::string failure = on_ranks(2, [](Runtime& runtime, cudaStream_t stream) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cuda(stream));
    const Context context = Context::open(runtime);
    Site few(Problem{.op = "gemm_ar", .m = 40, .n = 256, .k = 256}, channel);
    Site many(Problem{.op = "gemm_rs", .m = 1000, .n = 256, .k = 512}, channel);
    Site gathered(Problem{.op = "ag_gemm", .m = 512, .n = 256, .k = 512}, channel);
    std::vector<Site*> sites = {&few, &many, &gathered};
    for (Site* site : sites) site->run(context.plan(site->op())->schedule);
    runtime.synchronize();

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    many.run(context.plan(many.op())->schedule);
    try {
      (void)tune(context, channel, {many.op()});
      require("tuned inside of a capture", "gemm_rs");
    } catch (const InvalidArgument& error) {
      if (error.code() != Errc::capture) throw;
    }
    cuda_ok(cudaStreamEndCapture(stream, &graph));
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0));

    const TuneResult result = tune(context, channel);
    if (result.tuned.size() != sites.size()) require("not all that was called", "tune");
    for (const Tuned& one : result.tuned) {
      require(one.failure, one.op.to_string());
      if (!(one.tuned_us > 0 && one.library_us > 0)) require("no times", one.op.to_string());
      if (one.tuned_us > one.library_us) require("slower than the library", one.op.to_string());
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (Site* site : sites) {
        const auto plan = context.plan(site->op());
        if (plan->tier != plan::Tier::probe) require("not the measured plan", site->op().to_string());
        site->out().poison();
        site->run(plan->schedule);
        runtime.synchronize();
        require(site->mismatch(), site->op().to_string() + " " + to_string(plan->candidate));
      }
      many.out().poison();
      cuda_ok(cudaGraphLaunch(exec, stream));
      runtime.synchronize();
      require(many.mismatch(), "the captured call");
      team.barrier();
    }
    cuda_ok(cudaGraphExecDestroy(exec));
    cuda_ok(cudaGraphDestroy(graph));
  });
  EXPECT_EQ(failure, "");
}

TEST(GpuPlanProbe, TakesKernelsByTheGpusThatAreHereWhateverTheMachineFileSays) {
  OVERLACE_NEED_GPUS(2);
  const bool has_kernels = runtime::cuda_device(0).compute_capability == spec::kFusedCapability;
  spec::Machine machine = spec::find_machine("h200x2");
  machine.compute_capability = has_kernels ? 80 : spec::kFusedCapability;
  spec::OpSpec op;
  op.op = "gemm_ar";
  op.m = 40, op.n = op.k = 256, op.ranks = 2;
  op.dtype = op.out_dtype = DType::bf16;
  const auto plan = cli::plan_by_probe(op, machine, {.limit = plan::Tier::probe}, "");
  EXPECT_EQ(plan->tier, plan::Tier::probe) << plan->reason;
  EXPECT_EQ(plan->reason.find("compute capability") == std::string::npos, has_kernels) << plan->reason;
}

}  // namespace
}  // namespace overlace
