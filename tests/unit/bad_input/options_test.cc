// Variables of the environment and texts of options.
#include "overlace/runtime.h"
#include "src/base/env.h"
#include "tests/unit/bad_input/bad_input.h"

namespace overlace::bad_input {
namespace {

class BadOption : public BadInput {};
TEST_P(BadOption, IsRefusedInTheseWords) { expect_refusal(); }

Case variable(const char* name, const std::string& line, const char* text) {
  return {name, [line] { (void)base::Env::parse({line}).value(); }, Errc::invalid_argument, text};
}
Case launched(const char* name, const std::vector<std::string>& block, const char* text) {
  return {name, [block] { (void)base::Env::parse(block).value(); }, Errc::invalid_argument, text};
}

const Case kVariables[] = {
    variable("BackendUnknown", "OVERLACE_BACKEND=tpu", "OVERLACE_BACKEND is \"tpu\", wanted auto, cpu, cuda_peer"),
    variable("HeapUnknown", "OVERLACE_HEAP=malloc", "OVERLACE_HEAP is \"malloc\", wanted auto, vmm, ipc"),
    variable("HeapBytesNegative", "OVERLACE_HEAP_BYTES=-1",
             "OVERLACE_HEAP_BYTES is \"-1\", wanted integer >= 0, optional suffix K, M or G (powers of 1024)"),
    variable("HeapBytesUnit", "OVERLACE_HEAP_BYTES=64MB",
             "OVERLACE_HEAP_BYTES is \"64MB\", wanted integer >= 0, optional suffix K, M or G (powers of 1024)"),
    variable("HeapBytesOverflow", "OVERLACE_HEAP_BYTES=9223372036854775807G",
             "OVERLACE_HEAP_BYTES is \"9223372036854775807G\", wanted integer >= 0, optional suffix K, M or G (powers "
             "of 1024)"),
    variable("TimeoutZero", "OVERLACE_TIMEOUT_S=0", "OVERLACE_TIMEOUT_S is \"0\", wanted integer, 1 to 86400"),
    variable("TimeoutTooLong", "OVERLACE_TIMEOUT_S=86401",
             "OVERLACE_TIMEOUT_S is \"86401\", wanted integer, 1 to 86400"),
    variable("TimeoutFraction", "OVERLACE_TIMEOUT_S=0.5", "OVERLACE_TIMEOUT_S is \"0.5\", wanted integer, 1 to 86400"),
    variable("WaitUnknown", "OVERLACE_WAIT=sleep", "OVERLACE_WAIT is \"sleep\", wanted auto, spin, futex"),
    variable("EngineUnknown", "OVERLACE_NET_ENGINE=gloo",
             "OVERLACE_NET_ENGINE is \"gloo\", wanted auto, nccl, mpi, none"),
    variable("CheckUnknown", "OVERLACE_CHECK=sync,all",
             "OVERLACE_CHECK is \"sync,all\", wanted comma-separated list of sync, calls"),
    variable("SharedGpuWord", "OVERLACE_ALLOW_SHARED_GPU=yes", "OVERLACE_ALLOW_SHARED_GPU is \"yes\", wanted 0, 1"),
    variable("LogUnknown", "OVERLACE_LOG=loud", "OVERLACE_LOG is \"loud\", wanted off, error, warn, info, debug"),
    variable("ExplainWord", "OVERLACE_EXPLAIN=true", "OVERLACE_EXPLAIN is \"true\", wanted 0, 1"),
    variable("WorldWord", "WORLD_SIZE=two", "WORLD_SIZE is \"two\", wanted an integer >= 0"),
    variable("ConnectionsNegative", "CUDA_DEVICE_MAX_CONNECTIONS=-1",
             "CUDA_DEVICE_MAX_CONNECTIONS is \"-1\", wanted an integer >= 0"),
    launched("RankWord", {"WORLD_SIZE=2", "RANK=one"}, "RANK is \"one\", wanted an integer >= 0"),
    launched("RankNegative", {"WORLD_SIZE=2", "RANK=-1"}, "RANK is \"-1\", wanted an integer >= 0"),
    launched("MpiRankHuge", {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=99999999999"},
             "OMPI_COMM_WORLD_RANK is \"99999999999\", wanted an integer >= 0"),
};

Case adversary(const char* name, const std::string& text, const std::string& why) {
  return {name, [text] { (void)AdversaryOptions::parse(text); }, Errc::invalid_argument,
          "adversary \"" + text + "\": " + why +
              "; wanted seed=N with optional delay_us=0..1000000, pieces=1..64, window=1..1024, late_read=0|1, "
              "weak_signal=0|1, workers=1..16"};
}
Case link(const char* name, const std::string& text, const std::string& why) {
  return {name, [text] { (void)LinkOptions::parse(text); }, Errc::invalid_argument,
          "link \"" + text + "\": " + why +
              "; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; ns, us, ms, s), or none"};
}

const Case kTexts[] = {
    adversary("AdversaryEmpty", "", "it is empty"),
    adversary("AdversaryWord", "on", "\"on\" has no ="),
    adversary("AdversaryUnknownKey", "seed=1,speed=2", "\"speed\" is unknown"),
    adversary("AdversarySeedNegative", "seed=-1", "seed is \"-1\""),
    adversary("AdversaryNoPieces", "pieces=0", "pieces is \"0\""),
    adversary("AdversaryWindowTooWide", "window=1025", "window is \"1025\""),
    adversary("AdversaryLateReadTwo", "late_read=2", "late_read is \"2\""),
    adversary("AdversaryNoWorkers", "workers=0", "workers is \"0\""),
    adversary("AdversaryTrailingComma", "seed=1,", "\"\" has no ="),
    link("LinkEmpty", "", "it has 1 parts"),
    link("LinkWithoutLatency", "2GB/s", "it has 1 parts"),
    link("LinkThreeParts", "2GB/s,20us,1", "it has 3 parts"),
    link("LinkUnitMissing", "2,20us", "the rate is \"2\""),
    link("LinkRateZero", "0GB/s,20us", "the rate is \"0GB/s\""),
    link("LinkRateTooHigh", "2000GB/s,20us", "the rate is \"2000GB/s\""),
    link("LinkRateNotANumber", "nanGB/s,20us", "the rate is \"nanGB/s\""),
    link("LinkLatencyNegative", "2GB/s,-1us", "the latency is \"-1us\""),
    link("LinkLatencyTooLong", "2GB/s,11s", "the latency is \"11s\""),
    link("LinkLatencyUnit", "2GB/s,20parsec", "the latency is \"20parsec\""),
    {"ChecksUnknown", [] { (void)CheckOptions::parse("sync,fast"); }, Errc::invalid_argument,
     "checks \"sync,fast\": \"fast\" is unknown; wanted a comma-separated list of sync, calls"},
};

INSTANTIATE_TEST_SUITE_P(Variables, BadOption, testing::ValuesIn(kVariables), case_name);
INSTANTIATE_TEST_SUITE_P(Texts, BadOption, testing::ValuesIn(kTexts), case_name);

}  // namespace
}  // namespace overlace::bad_input
