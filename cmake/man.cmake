# Manual pages and shell completion: the program writes them itself, from the tables of its options.
set(man_pages)
foreach(command IN ITEMS program train eval predict info list bench report average check-data find-lr sweep tokenize generate completion)
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

set(completions)
foreach(shell IN ITEMS bash zsh)
  set(script ${PROJECT_BINARY_DIR}/completion/descent.${shell})
  add_custom_command(OUTPUT ${script}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/completion
    COMMAND sh -c "\"$0\" completion $1 > \"$2.new\" && mv \"$2.new\" \"$2\"" $<TARGET_FILE:descent> ${shell} ${script}
    DEPENDS descent COMMENT "Writing ${script}" VERBATIM)
  list(APPEND completions ${script})
endforeach()
add_custom_target(completion ALL DEPENDS ${completions})
install(FILES ${PROJECT_BINARY_DIR}/completion/descent.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME descent)
install(FILES ${PROJECT_BINARY_DIR}/completion/descent.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions
        RENAME _descent)
