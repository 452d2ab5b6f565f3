// Two processes that find each other through an all-gather of their own: a socket between them.
#define _POSIX_C_SOURCE 200809L
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c/check.h"

enum { kCount = 1000 };

typedef struct link_to_other {
  int fd, rank, calls;
} link_to_other;

static int transfer(int fd, char* data, size_t bytes, int sends) {
  while (bytes > 0) {
    const ssize_t n = sends ? write(fd, data, bytes) : read(fd, data, bytes);
    if (n <= 0) return 1;
    data += n;
    bytes -= (size_t)n;
  }
  return 0;
}

static int gather(void* user, const void* mine, size_t bytes, void* all) {
  link_to_other* link = user;
  char* entries = all;
  ++link->calls;
  memcpy(entries + (size_t)link->rank * bytes, mine, bytes);
  return transfer(link->fd, entries + (size_t)link->rank * bytes, bytes, 1) ||
         transfer(link->fd, entries + (size_t)(1 - link->rank) * bytes, bytes, 0);
}

static void run_rank(int rank, int fd) {
  link_to_other link = {fd, rank, 0};
  ovl_given given = OVL_INIT(ovl_given);
  given.rank = rank, given.size = 2, given.token = "given_test", given.allgather = gather, given.user = &link;
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  options.heap_bytes = 1 << 20;
  options.timeout_ms = 20000;
  ovl_runtime* runtime = NULL;
  ovl_team* team = NULL;
  ovl_channel* channel = NULL;
  ovl_buffer buffer = {0, 0};
  void *own = NULL, *theirs = NULL;
  int size = 0, seen = -1;
  if (!EXPECT_OK(ovl_runtime_open_given(&given, &options, &runtime))) return;
  CHECK(link.calls > 0);
  EXPECT_OK(ovl_runtime_world(runtime, &team));
  EXPECT_OK(ovl_team_size(team, &size));
  EXPECT_OK(ovl_team_rank(team, &seen));
  CHECK(size == 2 && seen == rank);
  EXPECT_OK(ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK(ovl_heap_alloc(runtime, kCount * sizeof(int), 0, "numbers", &buffer));
  EXPECT_OK(ovl_peer_ptr(team, buffer, rank, &own));
  EXPECT_OK(ovl_peer_ptr(team, buffer, 1 - rank, &theirs));
  EXPECT_OK(ovl_team_barrier(team)); /* fresh memory may be poisoned by its rank */
  for (int i = 0; i < kCount; ++i) ((int*)theirs)[i] = 1000 * (rank + 1) + i;
  EXPECT_OK(ovl_team_barrier(team));
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += ((int*)own)[i] != 1000 * (2 - rank) + i;
  CHECK(wrong == 0);
  EXPECT_OK(ovl_team_barrier(team));
  EXPECT_OK(ovl_runtime_close(runtime));
}

int main(void) {
  int fds[2];
  if (!CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0)) return 1;
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    run_rank(1, fds[1]);
    return num_failed == 0 && num_checked > 10 ? 0 : 1;
  }
  close(fds[1]);
  run_rank(0, fds[0]);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return finish("given_test", 13);
}
