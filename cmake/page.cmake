# The files of the report page (descent report --html) become part of the program.
set(page_sources)
foreach(file IN ITEMS report.html report.css chart.js report.js)
  string(REPLACE "." "_" symbol ${file})
  set(input ${PROJECT_SOURCE_DIR}/src/cli/page/${file})
  set(output ${PROJECT_BINARY_DIR}/page/${symbol}.c)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DNAME=dsc_page_${symbol} -DINPUT=${input} -DOUTPUT=${output} -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${input} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake COMMENT "Embedding ${file}" VERBATIM)
  list(APPEND page_sources ${output})
endforeach()
add_library(descent_page OBJECT ${page_sources})
target_link_libraries(descent_page PRIVATE descent_flags)
