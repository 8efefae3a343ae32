# Checks of the tree as a whole, and of the installed package.
descent_script_test(check-includes system/check-includes)
descent_script_test(check-symbols system/check-symbols)
descent_script_test(check-silence system/check-silence)
descent_script_test(check-format system/check-format)
descent_script_test(check-docs system/check-docs)
descent_script_test(check-cppcheck system/check-cppcheck)
descent_script_test(check-doxygen system/check-doxygen)
descent_script_test(check-same-bits system/check-same-bits)
descent_script_test(check-wgmma system/check-wgmma)
descent_script_test(check-modules system/check-modules)
descent_script_test(install system/install)
descent_script_test(check-slurm system/check-slurm)
# The commands of the documentation. Not with sanitizers: what they compile is compiled without them.
if(NOT DESCENT_SANITIZE)
  descent_script_test(docs-tutorial docs/commands docs/tutorial.md)
  descent_script_test(docs-readme docs/commands README.md examples/README.md)
  descent_script_test(docs-rest docs/commands --except docs/tutorial.md README.md examples/README.md)
  # They install, too, and the list of installed files is in the build directory.
  set_tests_properties(install docs-tutorial docs-readme docs-rest PROPERTIES RESOURCE_LOCK installation)
endif()
set_tests_properties(check-modules check-slurm PROPERTIES PROCESSORS 1 COST 50) # they wait, most of the time
