#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "overlace/runtime.h"

namespace overlace {
namespace {

template <class Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.code(), Errc::invalid_argument);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(LinkOptions, ReadsUnitsAndWritesThemBack) {
  const LinkOptions link = LinkOptions::parse("2.5GB/s,20us");
  EXPECT_TRUE(link.enabled);
  EXPECT_DOUBLE_EQ(link.bytes_per_s, 2.5e9);
  EXPECT_DOUBLE_EQ(link.latency_s, 20e-6);
  EXPECT_EQ(link.to_string(), "2.5GB/s,20us");
  EXPECT_DOUBLE_EQ(LinkOptions::parse("300MB/s,1ms").bytes_per_s, 3e8);
  EXPECT_DOUBLE_EQ(LinkOptions::parse("64KB/s,0s").bytes_per_s, 64e3);
  EXPECT_DOUBLE_EQ(LinkOptions::parse("5000B/s,750ns").latency_s, 750e-9);
  // The slowest that there is, and the fastest.
  EXPECT_DOUBLE_EQ(LinkOptions::parse("1KB/s,10s").latency_s, 10);
  EXPECT_DOUBLE_EQ(LinkOptions::parse("1000GB/s,0s").bytes_per_s, 1e12);
  EXPECT_FALSE(LinkOptions::parse("none").enabled);
  EXPECT_EQ(LinkOptions::parse("none").to_string(), "none");
  EXPECT_EQ(LinkOptions::parse("300MB/s,1ms").to_string(), "300MB/s,1ms");
}

TEST(LinkOptions, RefusesWithValueAndForm) {
  for (const char* text :
       {"", "2GB/s", "2GB,20us", "2GB/s,20", "-1GB/s,1us", "2GB/s,-1us", "nanGB/s,1us", "2GB/s,1us,3", "1B/s,1us",
        "2GB/s,11s", "2GB/s,1h", "GB/s,us", "infGB/s,1us", "2 GB/s,1us"}) {
    const std::string why = refusal([&] { (void)LinkOptions::parse(text); });
    EXPECT_NE(why.find("link \"" + std::string(text) + "\""), std::string::npos) << why;
    EXPECT_NE(why.find("wanted RATE,LATENCY such as 2GB/s,20us"), std::string::npos) << why;
  }
  EXPECT_EQ(
      refusal([] { (void)LinkOptions::parse("2GB/s,20"); }),
      "link \"2GB/s,20\": the latency is \"20\"; wanted RATE,LATENCY such as 2GB/s,20us (B, KB, MB, GB per second; "
      "ns, us, ms, s), or none");
  EXPECT_NE(refusal([] { (void)LinkOptions::parse("2GB/s,20us,ranks"); }).find("it has 3 parts"), std::string::npos);
}

TEST(LinkOptions, MayBeBetweenHostsOnly) {
  EXPECT_FALSE(LinkOptions::parse("2GB/s,20us").between_hosts);
  const LinkOptions link = LinkOptions::parse("2GB/s,20us,hosts");
  EXPECT_TRUE(link.between_hosts);
  EXPECT_EQ(link.to_string(), "2GB/s,20us,hosts");
}

TEST(AdversaryOptions, ReadsKeysInAnyOrder) {
  const AdversaryOptions a =
      AdversaryOptions::parse("window=3,seed=7,delay_us=0,pieces=1,late_read=0,weak_signal=0,workers=2");
  EXPECT_TRUE(a.enabled);
  EXPECT_EQ(a.seed, 7u);
  EXPECT_EQ(a.max_delay_us, 0);
  EXPECT_EQ(a.max_pieces, 1);
  EXPECT_EQ(a.reorder_window, 3);
  EXPECT_FALSE(a.late_read);
  EXPECT_FALSE(a.weak_signal);
  EXPECT_EQ(a.workers, 2);
  const AdversaryOptions defaults = AdversaryOptions::parse("seed=18446744073709551615");
  EXPECT_EQ(defaults.seed, 18446744073709551615ull);
  EXPECT_EQ(defaults.max_pieces, 4);
  EXPECT_TRUE(defaults.late_read);
  EXPECT_EQ(defaults.workers, 0);
}

TEST(AdversaryOptions, RefusesWithValueAndForm) {
  for (const char* text : {"", "seed", "seed=", "seed=x", "seed=-1", "pieces=0", "window=9999", "late_read=2", "what=1",
                           "seed=1,", "delay_us=1e3", "seed=18446744073709551616"}) {
    const std::string why = refusal([&] { (void)AdversaryOptions::parse(text); });
    EXPECT_NE(why.find("adversary \"" + std::string(text) + "\""), std::string::npos) << why;
    EXPECT_NE(why.find("wanted seed=N with optional delay_us"), std::string::npos) << why;
  }
}

TEST(CheckOptions, ReadsListsAndWritesThemBack) {
  for (const char* text : {"", "sync", "calls", "sync,calls"}) EXPECT_EQ(CheckOptions::parse(text).to_string(), text);
  EXPECT_TRUE(CheckOptions::parse("calls,sync").sync);
  EXPECT_TRUE(CheckOptions::parse("calls,sync").calls);
  EXPECT_EQ(refusal([] { (void)CheckOptions::parse("sync,all"); }),
            "checks \"sync,all\": \"all\" is unknown; wanted a comma-separated list of sync, calls");
}

TEST(RuntimeOptions, RefusesValuesOutOfRange) {
  const auto open = [](auto change) {
    return refusal([&] {
      RuntimeOptions options;
      options.backend = Backend::cpu;
      options.heap_bytes = 1 << 20;
      change(options);
      (void)Runtime::open(*thread_bootstraps(1)[0], options);
    });
  };
  EXPECT_EQ(open([](RuntimeOptions& o) { o.timeout_ms = -5; }),
            "RuntimeOptions::timeout_ms is -5, wanted 1 to 86400000");
  EXPECT_EQ(open([](RuntimeOptions& o) { o.num_signal_ids = 3; }),
            "RuntimeOptions::num_signal_ids is 3, wanted 64 to 1048576");
  EXPECT_NE(open([](RuntimeOptions& o) { o.net_engine = "gin"; }).find("net_engine is \"gin\""), std::string::npos);
  EXPECT_EQ(refusal([] { (void)thread_bootstraps(0); }), "thread_bootstraps: n is 0, wanted >= 1");
  const auto callback = [](int rank, int size,
                           const std::function<std::vector<Bytes>(std::span<const std::byte>)>& gather) {
    return refusal([&] { (void)callback_bootstrap(rank, size, "t", gather); });
  };
  const auto none = [](auto) { return std::vector<Bytes>(); };
  const std::string wanted = ", wanted 0 <= rank < size and a callable";
  EXPECT_EQ(callback(2, 2, none), "callback_bootstrap: rank is 2 of 2" + wanted);
  EXPECT_EQ(callback(-1, 2, none), "callback_bootstrap: rank is -1 of 2" + wanted);
  EXPECT_EQ(callback(0, 0, none), "callback_bootstrap: rank is 0 of 0" + wanted);
  EXPECT_EQ(callback(0, 2, {}), "callback_bootstrap: rank is 0 of 2" + wanted);
  EXPECT_EQ(callback(0, 1, none), "nothing was thrown");
}

TEST(RuntimeOptions, WithoutCudaTheBackendSaysSo) {
#ifndef OVERLACE_HAS_CUDA
  RuntimeOptions options;
  options.backend = Backend::cuda_peer;
  try {
    (void)Runtime::open(*thread_bootstraps(1)[0], options);
    FAIL() << "nothing was thrown";
  } catch (const Unsupported& error) {
    EXPECT_EQ(error.code(), Errc::not_supported);
    EXPECT_NE(std::string(error.what()).find("cuda_peer"), std::string::npos);
  }
#else
  GTEST_SKIP() << "this build has CUDA";
#endif
}

}  // namespace
}  // namespace overlace
