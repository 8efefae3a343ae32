# The recipes of docs/extending.md, followed literally. Not with sanitizers: the programs are compiled without them.
if(NOT DESCENT_SANITIZE)
  descent_script_test(recipes-programs recipes/follow ${PROJECT_BINARY_DIR} layer model data graph communicator)
  descent_script_test(recipes-library recipes/follow ${PROJECT_BINARY_DIR} optimiser kfac-kind option operation)
endif()
