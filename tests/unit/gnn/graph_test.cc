#include "src/gnn/graph.h"

#include <gtest/gtest.h>

#include <vector>

namespace overlace::gnn {
namespace {

struct Case {
  std::vector<int64_t> indptr;
  std::vector<int32_t> indices;
  std::string wanted;  // part of the message; empty: accepted
};

TEST(Graph, CountsVerticesEdgesAndDegrees) {
  const std::vector<int64_t> indptr = {0, 2, 2, 5}, indices = {1, 2, 0, 0, 1};
  const CscView graph{indptr, std::span<const int64_t>(indices)};
  EXPECT_EQ(graph.num_vertices(), 3);
  EXPECT_EQ(graph.num_edges(), 5);
  EXPECT_EQ(graph.degree(0), 2);
  EXPECT_EQ(graph.degree(1), 0);
  EXPECT_EQ(graph.degree(2), 3);
  EXPECT_TRUE(check_graph(graph).ok());
}

TEST(Graph, NamesTheFirstPositionThatIsWrong) {
  const Case cases[] = {
      {{0, 1, 3}, {0, 1, 1}, ""},
      {{}, {}, "indptr is empty, wanted N + 1"},
      {{1, 1}, {0}, "indptr[0] is 1, wanted 0"},
      {{0, 2, 1}, {0}, "indptr[2] is 1, wanted at least indptr[1], which is 2"},
      {{0, 1, 2}, {0, 1, 1}, "indptr[2], the last, is 2, wanted the number of edges, 3"},
      {{0, 1, 3}, {0, 2, 1}, "indices[1] is 2, wanted a vertex in [0, 2)"},
      {{0, 1, 3}, {0, 1, -1}, "indices[2] is -1, wanted a vertex in [0, 2)"},
  };
  for (const Case& c : cases) {
    const base::Status status = check_graph({c.indptr, std::span<const int32_t>(c.indices)});
    if (c.wanted.empty()) {
      EXPECT_TRUE(status.ok()) << status.message();
      continue;
    }
    EXPECT_EQ(status.code(), Errc::invalid_argument);
    EXPECT_NE(status.message().find(c.wanted), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace overlace::gnn
