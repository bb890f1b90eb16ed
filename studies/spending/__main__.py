from studies.spending.study import main

main()
