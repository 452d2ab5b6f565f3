#include "cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace overlace::cli {
namespace {

/// What was written to a temporary file.
class Sink {
 public:
  Sink() : file_(std::tmpfile()) {}
  ~Sink() { std::fclose(file_); }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    std::rewind(file_);
    std::string out;
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) out += static_cast<char>(c);
    return out;
  }

 private:
  std::FILE* file_;
};

TEST(ProgressLine, ShowsShareAndStep) {
  EXPECT_EQ(progress_line(0, "loading", 79), "[....................]   0 %  loading");
  EXPECT_EQ(progress_line(0.5, "timing qkv", 79), "[##########..........]  50 %  timing qkv");
  EXPECT_EQ(progress_line(1, "done", 79), "[####################] 100 %  done");
}

TEST(ProgressLine, StaysWithinTheLineWhateverItIsGiven) {
  EXPECT_EQ(progress_line(7, "x", 79), progress_line(1, "x", 79));
  EXPECT_EQ(progress_line(-1, "x", 79), progress_line(0, "x", 79));
  EXPECT_EQ(progress_line(std::nan(""), "x", 79), progress_line(0, "x", 79));
  EXPECT_EQ(progress_line(0.5, std::string(500, 'y'), 79).size(), 79u);
}

TEST(Progress, MovesByTheWeightsOfItsSteps) {
  Sink sink;
  {
    Progress progress(sink.file(), true, 4);
    progress.begin("one", 1);
    progress.begin("two", 3);
    progress.update(1.0 / 3);
  }
  const std::string text = sink.text();
  EXPECT_NE(text.find("  0 %  one"), std::string::npos);
  EXPECT_NE(text.find(" 25 %  two"), std::string::npos);
  EXPECT_NE(text.find(" 50 %  two"), std::string::npos);
  // The line is blanked at the end, so that the table does not start behind a bar.
  EXPECT_EQ(text.back(), '\r');
  EXPECT_EQ(text.substr(text.size() - 5), "    \r");
}

TEST(Progress, WritesNothingWhenDisabled) {
  Sink sink;
  {
    Progress progress(sink.file(), false, 2);
    progress.begin("one", 1);
    progress.update(0.5);
    progress.begin("two", 1);
  }
  EXPECT_EQ(sink.text(), "");
}

TEST(Progress, AppearsOnATerminalOnly) {
  const int file = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_FALSE(shows_progress(file, false));
  ::close(file);
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) GTEST_SKIP() << "no pseudo terminals here";
  EXPECT_TRUE(shows_progress(terminal, false));
  EXPECT_FALSE(shows_progress(terminal, true));
  ::close(terminal);
}

}  // namespace
}  // namespace overlace::cli
