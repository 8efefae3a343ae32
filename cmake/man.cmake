# Manual pages: the program writes them itself, from the tables its option parser uses.
set(man_pages)
foreach(command IN ITEMS program train eval info bench report average)
  if(command STREQUAL "program")
    set(page ${PROJECT_BINARY_DIR}/man/descent.1)
    set(argument "")
  else()
    set(page ${PROJECT_BINARY_DIR}/man/descent-${command}.1)
    set(argument ${command})
  endif()
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/man
    COMMAND sh -c "\"$0\" --man $1 > \"$2.new\" && mv \"$2.new\" \"$2\"" $<TARGET_FILE:descent> "${argument}" ${page}
    DEPENDS descent COMMENT "Writing ${page}" VERBATIM)
  list(APPEND man_pages ${page})
endforeach()
add_custom_target(man ALL DEPENDS ${man_pages})
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
