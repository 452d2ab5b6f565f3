# Writes OUT, C++ with the commit of the checkout SOURCE, "" where it is none, as in an archive. At each build; the file
# stays as it is where nothing has changed.
set(commit "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-prefix
    RESULT_VARIABLE failed OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND prefix STREQUAL "")  # and no folder of somebody else's checkout
    execute_process(COMMAND ${git} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
string(CONCAT text
  "#include \"cli/version.h\"\n\n"
  "namespace overlace::cli {\n\nconst char* commit() { return \"${commit}\"; }\n\n}  // namespace overlace::cli\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUT} "${text}")
endif()
