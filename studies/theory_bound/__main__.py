from studies.theory_bound.study import main

main()
