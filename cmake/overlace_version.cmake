# The version, from one place: X.Y.Z of project() on the tag vX.Y.Z, else X.Y.Z.devN+gCOMMIT (PEP 440): N commits after
# the last tag, without tags all commits; ".dirty" where files were changed. Known in the checkout SOURCE, in
# a source distribution (PKG-INFO) and in a `git archive`, which fills in archive.txt; elsewhere X.Y.Z.dev0.
# Printed, or at each build written into OUT as C++; that file stays as it is where nothing has changed.
file(STRINGS ${SOURCE}/CMakeLists.txt line REGEX "^project\\(")
string(REGEX MATCH "VERSION ([0-9]+[.][0-9]+[.][0-9]+)" line "${line}")
set(release "${CMAKE_MATCH_1}")
set(described "")  # as by git describe --long
set(distance 0)
set(version "")
find_program(git git)
if(EXISTS ${SOURCE}/PKG-INFO)  # whatever repository somebody has put it into
  file(STRINGS ${SOURCE}/PKG-INFO line REGEX "^Version: " LIMIT_COUNT 1)
  string(REGEX REPLACE "^Version: " "" version "${line}")
  string(REGEX MATCH "[+]g([0-9a-f]+)([.]dirty)?$" line "${version}")
  string(REPLACE "." "-" commit "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
elseif(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-prefix
    RESULT_VARIABLE failed OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")  # and no folder of somebody else's checkout
    execute_process(COMMAND ${git} -C ${SOURCE} describe --always --long --dirty --abbrev=12 --tags
            --match=v[0-9]* --exclude=v*[!0-9.]*
      OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${git} -C ${SOURCE} rev-list --count HEAD
      OUTPUT_VARIABLE distance OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(described STREQUAL "" AND EXISTS ${SOURCE}/cmake/archive.txt)
  file(STRINGS ${SOURCE}/cmake/archive.txt line REGEX "^[0-9a-f]+$")
  string(SUBSTRING "${line}" 0 12 described)
  file(STRINGS ${SOURCE}/cmake/archive.txt line REGEX "^v[0-9]")  # 0 commits after the tag are not said
  if(line MATCHES "^(v[0-9.]+)(-[0-9]+)?")
    if(NOT CMAKE_MATCH_2)
      set(CMAKE_MATCH_2 -0)
    endif()
    set(described ${CMAKE_MATCH_1}${CMAKE_MATCH_2}-g${described})
  endif()
endif()
if(version STREQUAL "")
  set(version ${release}.dev0)
  set(commit "")
  if(described MATCHES "^(v([0-9.]+)-([0-9]+)-g)?([0-9a-f]+)(-dirty)?$")
    set(commit "${CMAKE_MATCH_4}${CMAKE_MATCH_5}")
    set(tag "${CMAKE_MATCH_2}")
    if(tag)
      set(distance ${CMAKE_MATCH_3})
    endif()
    string(REPLACE "-" "." text "${commit}")
    set(version ${release}.dev${distance}+g${text})
    if(tag AND distance EQUAL 0 AND NOT commit MATCHES "-dirty$")
      if(NOT release STREQUAL tag)
        message(FATAL_ERROR "the tag is v${tag}; wanted: v${release}, of project() in CMakeLists.txt")
      endif()
      set(version ${release})
    endif()
  endif()
endif()
if(NOT OUT)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${version})
  return()
endif()
string(CONCAT text
  "#include \"src/base/version.h\"\n\n"
  "namespace overlace::base {\n\n"
  "const char* version() { return \"${version}\"; }\n\n"
  "const char* commit() { return \"${commit}\"; }\n\n}  // namespace overlace::base\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUT} "${text}")
endif()
