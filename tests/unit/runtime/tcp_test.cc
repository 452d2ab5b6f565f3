// Ranks of several hosts that meet over TCP; here all of them are on this one.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/socket.h"

namespace overlace::runtime {
namespace {

std::string job_of_this_test(int number) {
  return base::format("{} {}", testing::UnitTest::GetInstance()->random_seed() + ::getpid(), number);
}

/// Each rank gives its number twice; what is wrong in words.
std::string meet(const std::string& job, int size, int64_t timeout_ms) {
  std::vector<std::string> wrong(static_cast<size_t>(size));
  const auto rank_body = [&](int rank) {
    std::string& mine = wrong[static_cast<size_t>(rank)];
    base::Result<std::unique_ptr<Bootstrap>> bootstrap = tcp_bootstrap("127.0.0.1", job, rank, size, timeout_ms);
    if (!bootstrap.ok()) {
      mine = bootstrap.status().message();
      return;
    }
    for (int round = 0; round < 2; ++round) {
      const std::string said = base::format("rank {} round {}", rank, round);
      const std::vector<Bytes> all = (*bootstrap)->allgather(std::as_bytes(std::span(said)), timeout_ms);
      for (int r = 0; r < size; ++r) {
        const Bytes& entry = all[static_cast<size_t>(r)];
        const std::string heard(reinterpret_cast<const char*>(entry.data()), entry.size());
        if (heard != base::format("rank {} round {}", r, round)) mine += heard;
      }
    }
    (*bootstrap)->barrier(timeout_ms);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(rank_body, rank);
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& text : wrong) all += text;
  return all;
}

TEST(Tcp, RanksMeet) { EXPECT_EQ(meet(job_of_this_test(1), 4, 10000), ""); }

TEST(Tcp, APortThatSomebodyElseHasIsPassedBy) {
  const std::string job = job_of_this_test(2);
  const base::Result<UniqueFd> other = listen_on(base::format("tcp:*:{}", first_port(job)), SOCK_STREAM);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(port_of(other->get()), first_port(job));
  // It never answers: whoever asks it waits two seconds and goes on.
  EXPECT_EQ(meet(job, 2, 10000), "");
}

TEST(Tcp, WhoFindsNobodySaysWhereItLooked) {
  const std::string job = job_of_this_test(3);
  const base::Result<std::unique_ptr<Bootstrap>> alone = tcp_bootstrap("127.0.0.1", job, 1, 2, 300);
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.status().code(), Errc::bootstrap);
  for (const std::string& part : {std::string("rank 1 of 2 did not find rank 0 on 127.0.0.1"),
                                  base::format("ports {} to {}", first_port(job), first_port(job) + 15)})
    EXPECT_NE(alone.status().message().find(part), std::string::npos) << alone.status().message();
}

TEST(Tcp, AMissingRankIsNamed) {
  base::Result<std::unique_ptr<Bootstrap>> first = tcp_bootstrap("127.0.0.1", job_of_this_test(4), 0, 3, 5000);
  ASSERT_TRUE(first.ok()) << first.status().message();
  try {
    (*first)->barrier(200);
    FAIL() << "nobody else has come";
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1, 2 is missing after 0.2 s"), std::string::npos) << error.what();
  }
}

TEST(Tcp, AHostThatDoesNotExistIsNamed) {
  const base::Result<std::unique_ptr<Bootstrap>> lost = tcp_bootstrap("host.invalid", "job", 1, 2, 100);
  ASSERT_FALSE(lost.ok());
  EXPECT_NE(lost.status().message().find("host.invalid"), std::string::npos) << lost.status().message();
}

TEST(Tcp, OwnAddressesAreNumbers) {
  const std::vector<std::string> addresses = own_addresses();
  ASSERT_FALSE(addresses.empty());
  for (const std::string& address : addresses)
    EXPECT_EQ(address.find_first_not_of("0123456789."), std::string::npos) << address;
}

}  // namespace
}  // namespace overlace::runtime
