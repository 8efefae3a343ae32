# Checks of the tree as a whole, and of the installed package.
descent_script_test(check-includes system/check-includes)
descent_script_test(check-symbols system/check-symbols)
descent_script_test(check-silence system/check-silence)
descent_script_test(check-format system/check-format)
descent_script_test(check-cppcheck system/check-cppcheck)
descent_script_test(check-same-bits system/check-same-bits)
descent_script_test(install system/install)
descent_script_test(check-slurm system/check-slurm)
