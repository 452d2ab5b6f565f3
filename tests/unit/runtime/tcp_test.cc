// Ranks of several hosts that meet over TCP; here all of them are on this one.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/doors.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

std::string job_of_this_test(int number) {
  return base::format("{} {}", testing::UnitTest::GetInstance()->random_seed() + ::getpid(), number);
}

TcpMeeting on_loopback(const std::string& job) {
  return {.host = "127.0.0.1", .job = job, .secret = "secret-of-this-test", .listen = ""};
}

/// Each rank gives its number twice; what is wrong in words.
std::string meet(const std::string& job, int size, int64_t timeout_ms) {
  std::vector<std::string> wrong(static_cast<size_t>(size));
  const auto rank_body = [&](int rank) {
    std::string& mine = wrong[static_cast<size_t>(rank)];
    base::Result<std::unique_ptr<Bootstrap>> bootstrap = tcp_bootstrap(on_loopback(job), rank, size, timeout_ms);
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
  const base::Result<std::unique_ptr<Bootstrap>> alone = tcp_bootstrap(on_loopback(job), 1, 2, 300);
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.status().code(), Errc::bootstrap);
  for (const std::string& part : {std::string("rank 1 of 2 did not find rank 0 on 127.0.0.1"),
                                  base::format("ports {} to {}", first_port(job), first_port(job) + 15)})
    EXPECT_NE(alone.status().message().find(part), std::string::npos) << alone.status().message();
}

TEST(Tcp, AMissingRankIsNamed) {
  base::Result<std::unique_ptr<Bootstrap>> first = tcp_bootstrap(on_loopback(job_of_this_test(4)), 0, 3, 5000);
  ASSERT_TRUE(first.ok()) << first.status().message();
  try {
    (*first)->barrier(200);
    FAIL() << "nobody else has come";
  } catch (const PeerLost& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1, 2 is missing after 0.2 s"), std::string::npos) << error.what();
  }
}

TEST(Tcp, AHostThatDoesNotExistIsNamed) {
  TcpMeeting meeting = on_loopback("job");
  meeting.host = "host.invalid";
  const base::Result<std::unique_ptr<Bootstrap>> lost = tcp_bootstrap(meeting, 1, 2, 100);
  ASSERT_FALSE(lost.ok());
  EXPECT_NE(lost.status().message().find("host.invalid"), std::string::npos) << lost.status().message();
}

TEST(Tcp, WithoutASecretNobodyMeets) {
  TcpMeeting meeting = on_loopback(job_of_this_test(5));
  meeting.secret.clear();
  for (const int rank : {0, 1}) {
    const base::Result<std::unique_ptr<Bootstrap>> refused = tcp_bootstrap(meeting, rank, 2, 5000);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Errc::invalid_argument);
    EXPECT_NE(refused.status().message().find("OVERLACE_SECRET"), std::string::npos) << refused.status().message();
  }
}

TEST(Tcp, WhoPosesAsRankZeroIsPassedBy) {
  const std::string job = job_of_this_test(8);
  const base::Result<UniqueFd> liar = listen_on(base::format("tcp:127.0.0.1:{}", first_port(job)), SOCK_STREAM);
  ASSERT_TRUE(liar.ok()) << liar.status().message();
  const int64_t begin_ns = now_ns();
  std::thread rank([&] { EXPECT_EQ(meet(job, 2, 20000), ""); });
  UniqueFd fd;
  while (!fd && now_ns() - begin_ns < 10000000000)
    fd = UniqueFd(::accept4(liar->get(), nullptr, nullptr, SOCK_CLOEXEC));
  // A welcome with 100 MiB behind it, of which nothing comes.
  const struct {
    uint32_t magic = 0x0B1ACE02, type = 1;
    uint64_t number = 0;
    int64_t value = 0;
    uint64_t length = uint64_t{100} << 20;
  } welcome;
  EXPECT_TRUE(send_all(fd.get(), &welcome, sizeof welcome).ok());
  // Its hello, and then it hangs up at once; who believes it waits for two seconds.
  char hello[256];
  const int64_t said_ns = now_ns();
  while (::recv(fd.get(), hello, sizeof hello, 0) > 0) continue;
  EXPECT_LT(now_ns() - said_ns, 1500000000);
  rank.join();
}

TEST(Tcp, AnotherSecretIsTurnedAwayAndSaysWhy) {
  const TcpMeeting meeting = on_loopback(job_of_this_test(6));
  base::Result<std::unique_ptr<Bootstrap>> first = tcp_bootstrap(meeting, 0, 2, 5000);
  ASSERT_TRUE(first.ok()) << first.status().message();
  TcpMeeting other = meeting;
  other.secret = "secret-of-another-test";
  const base::Result<std::unique_ptr<Bootstrap>> refused = tcp_bootstrap(other, 1, 2, 200);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("wrong token"), std::string::npos) << refused.status().message();
}

TEST(Tcp, RankZeroListensOnAnAddressOfItsHostOnly) {
  TcpMeeting meeting = on_loopback(job_of_this_test(7));
  meeting.host = "192.0.2.1";  // nobody's
  const base::Result<std::unique_ptr<Bootstrap>> elsewhere = tcp_bootstrap(meeting, 0, 2, 200);
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.status().message().find("OVERLACE_LISTEN"), std::string::npos) << elsewhere.status().message();
  meeting.host = "0.0.0.0";
  EXPECT_FALSE(tcp_bootstrap(meeting, 0, 2, 200).ok()) << "all interfaces are asked for by name";
}

TEST(Doors, AreWhereTheyWereAskedFor) {
  const auto doors = [](const std::string& listen, const std::string& met, const std::vector<std::string>& others) {
    return addresses_of_doors(listen, met, others).value();
  };
  using List = std::vector<std::string>;
  EXPECT_EQ(doors("", "10.1.2.3", {"10.1.2.4"}), List{"10.1.2.3"});
  EXPECT_EQ(doors("any", "10.1.2.3", {}), List{"*"});
  EXPECT_EQ(doors("127.0.0.5", "10.1.2.3", {}), List{"127.0.0.5"});
  EXPECT_EQ(doors("lo", "", {}), List{"127.0.0.1"});
  EXPECT_EQ(doors("", "", own_addresses()), List{"127.0.0.1"}) << "hosts that are this one";
  for (const std::string& address : doors("", "", {"192.0.2.7"}))
    EXPECT_NE(address, "*") << "a way to another host is one interface";
  // There is no way to it: connect() refuses a broadcast to who has not asked for that.
  const List usual = doors("", "", {"255.255.255.255"});
  ASSERT_EQ(usual.size(), 1u);
  EXPECT_NE(number_of(usual[0]), 0u) << usual[0];
  EXPECT_EQ(doors("", "", {"no number"}), usual);
  for (const char* wrong : {"0.0.0.0", "eth99", "300.1.1.1", "*"}) {
    const base::Result<std::vector<std::string>> refused = addresses_of_doors(wrong, "", {});
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.status().code(), Errc::invalid_argument);
    EXPECT_NE(refused.status().message().find(wrong), std::string::npos) << refused.status().message();
  }
  EXPECT_EQ(address_to_serve("127.0.0.1", "").value(), "127.0.0.1");
  EXPECT_EQ(address_to_serve("localhost", "").value(), "127.0.0.1");
  EXPECT_EQ(address_to_serve("10.9.9.9", "any").value(), "*");
  EXPECT_EQ(addresses_to_try("10.9.9.9"), List{"10.9.9.9"});
}

TEST(Tcp, OwnAddressesAreNumbers) {
  const std::vector<std::string> addresses = own_addresses();
  ASSERT_FALSE(addresses.empty());
  for (const std::string& address : addresses)
    EXPECT_EQ(address.find_first_not_of("0123456789."), std::string::npos) << address;
}

}  // namespace
}  // namespace overlace::runtime
