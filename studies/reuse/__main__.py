from studies.reuse.study import main

main()
