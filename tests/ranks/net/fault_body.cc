// One rank fails while runtimes open or in an operator; each other rank prints what it was told, and when.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "overlace/error.h"
#include "src/base/env.h"
#include "src/runtime/backend/cpu/observer.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/phases.h"
#include "tests/ranks/net/body.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

using runtime::Phase;
using runtime::Step;

constexpr const char* kFull = "the disk is full";

void happen(const std::string& fault) {
  print_to_log(base::format("fault at {}\n", runtime::now_ns()));
  if (fault == "kill") ::kill(::getpid(), SIGKILL);
  if (fault == "exit") std::exit(0);
  if (fault == "stop") {
    // Nobody else would end it.
    (void)!std::system(base::format("sh -c 'sleep 3; kill -9 {}' > /dev/null 2>&1 &", ::getpid()).c_str());
    ::kill(::getpid(), SIGSTOP);
  }
  throw IoError(Errc::io, kFull);
}

/// The fault happens at the third put.
class AtPut final : public runtime::Observer {
 public:
  explicit AtPut(std::function<void()> fail) : fail_(std::move(fail)) {}
  bool before(const Step& step) override {
    if (step.kind == Step::Kind::put && ++seen_ == 3) fail_();
    return true;
  }

 private:
  const std::function<void()> fail_;
  int seen_ = 0;
};

TEST(Fault, OthersAreTold) {
  const std::string fault = parameters()["fault"], place = parameters()["place"];
  const int rank = base::env().rank;
  const bool is_culprit = std::to_string(rank) == parameters()["culprit"];
  const Phase phase = place == "connect" ? Phase::connect : place == "heap" ? Phase::heap : Phase::hello;
  if (is_culprit && place != "operator")
    runtime::set_phase_hook([&](Phase at, int) {
      if (at == phase) happen(fault);
    });
  std::string told;
  Errc code = Errc::ok;
  try {
    const auto bootstrap = environment_bootstrap();
    Runtime runtime = Runtime::open(*bootstrap, net_options(1000));
    AtPut observer([&] {
      if (fault == "fail") runtime.abort(Errc::io, kFull);
      happen(fault);
    });
    Operands operands({.op = "gemm_rs", .family = "uniform_fused_1d", .degree = 2, .m = 12},
                      runtime.world().channel(StreamRef::cpu()));
    if (is_culprit && place == "operator") runtime::observe(runtime, &observer);
    for (int64_t call = 1; call < 100000; ++call) {
      operands.fill(call);
      operands.run();
    }
  } catch (const Error& error) {
    told = error.what();
    code = error.code();
  }
  std::replace(told.begin(), told.end(), '\n', ' ');
  if (!is_culprit)
    print_to_log(
        base::format("told rank {} code {} at {}: {}\n", rank, static_cast<int>(code), runtime::now_ns(), told));
}

}  // namespace
}  // namespace overlace::test
