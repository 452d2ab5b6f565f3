// What the environment says of machine and explanations, through C: OVERLACE_MACHINE=FILE, OVERLACE_EXPLAIN=1.
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "tests/c/threads.h"

enum { kRows = 64, kColumns = 12, kDepth = 8 };

static const char kOrigin[] = MACHINE_FILE ", OVERLACE_MACHINE";

/// The product of one shape, twice: its choice is explained once.
static void gathered(ovl_runtime* runtime, ovl_team* team, int rank) {
  const char* origin = NULL;
  EXPECT_OK_RANK(rank, ovl_runtime_machine(runtime, &origin));
  CHECK_RANK(rank, origin != NULL && strcmp(origin, kOrigin) == 0);
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  float shard[kRows / kRanks * kDepth], weight[kDepth * kColumns], c[kRows * kColumns];
  for (int i = 0; i < kRows / kRanks * kDepth; ++i) shard[i] = (float)((i / kDepth + rank * 3) % 5);
  for (int i = 0; i < kDepth * kColumns; ++i) weight[i] = (float)(i % kColumns % 3);
  ovl_tensor tensors[3];
  EXPECT_OK_RANK(rank, ovl_matrix(shard, OVL_FP32, kRows / kRanks, kDepth, &tensors[0]));
  EXPECT_OK_RANK(rank, ovl_matrix(weight, OVL_FP32, kDepth, kColumns, &tensors[1]));
  EXPECT_OK_RANK(rank, ovl_matrix(c, OVL_FP32, kRows, kColumns, &tensors[2]));
  const ovl_arg args[] = {ovl_tensor_arg("a_shard", tensors[0]), ovl_tensor_arg("b", tensors[1]),
                          ovl_tensor_arg("c", tensors[2])};
  for (int call = 0; call < 2; ++call) {
    memset(c, 0xFF, sizeof c);
    EXPECT_OK_RANK(rank, ovl_run(channel, "ag_gemm", args, 3, NULL));
    CHECK_RANK(rank, wrong_products(c, kRows, kColumns, kDepth, 0) == 0);
  }
}

/// What the ranks wrote to stderr: one line, of rank 0, which names problem, choice and machine.
static void check_lines(char* text) {
  int found = 0;
  for (char* line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    if (strncmp(line, "overlace: ", 10) != 0) continue;
    ++found;
    const size_t length = strlen(line), tail = strlen(kOrigin);
    CHECK(strstr(line, "overlace: ag_gemm M 64 N 12 K 8 G 2 fp32: ") == line);
    CHECK(length > tail + 2 && line[length - 1] == ']' && line[length - tail - 2] == '[' &&
          strncmp(line + length - tail - 1, kOrigin, tail) == 0);
  }
  CHECK(found == 1);
}

int main(void) {
  CHECK(setenv("OVERLACE_MACHINE", MACHINE_FILE, 1) == 0 && setenv("OVERLACE_EXPLAIN", "1", 1) == 0);
  FILE* const lines = tmpfile();
  const int before = dup(STDERR_FILENO);
  CHECK(lines != NULL && before >= 0 && dup2(fileno(lines), STDERR_FILENO) >= 0);
  rank_machine = NULL;
  run_ranks(gathered);
  fflush(stderr);
  CHECK(dup2(before, STDERR_FILENO) >= 0 && close(before) == 0);
  char text[4096] = "";
  rewind(lines);
  CHECK(fread(text, 1, sizeof text - 1, lines) > 0);
  fputs(text, stderr);
  check_lines(text);
  fclose(lines);
  return finish("environment_test", 30);
}
